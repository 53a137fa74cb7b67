"""Unary and pair scores of proposals. Needs only torch and numpy."""

from pairloc.scores.cosine import CosineScores
from pairloc.scores.mix import MixedPairs
from pairloc.scores.pair_function import PairFunction
from pairloc.scores.pairs import BACKENDS, PairScorer
from pairloc.scores.relation import RelationScores
from pairloc.scores.unary import UnaryScores

PAIR_FUNCTIONS: dict[str, type[RelationScores] | type[CosineScores]] = {
    "relation": RelationScores,
    "cosine": CosineScores,
}

__all__ = [
    "BACKENDS",
    "PAIR_FUNCTIONS",
    "CosineScores",
    "MixedPairs",
    "PairFunction",
    "PairScorer",
    "RelationScores",
    "UnaryScores",
]
