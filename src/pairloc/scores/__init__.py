"""Unary and pair scores. Needs torch and numpy alone."""

from pairloc.scores.cosine import CosineScores
from pairloc.scores.mix import MixedPairs, mix_unary
from pairloc.scores.pairs import BACKENDS, PairScorer
from pairloc.scores.relation import RelationScores
from pairloc.scores.unary import UnaryScores

__all__ = ["BACKENDS", "CosineScores", "MixedPairs", "PairScorer", "RelationScores", "UnaryScores", "mix_unary"]
