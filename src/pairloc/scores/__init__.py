"""Unary and pair scores of proposals. Needs only torch and numpy."""

from collections.abc import Callable

from pairloc.scores.cosine import CosineScores
from pairloc.scores.mix import MixedPairs
from pairloc.scores.pair_function import PairFunction
from pairloc.scores.pairs import BACKENDS, PairScorer
from pairloc.scores.relation import RelationScores
from pairloc.scores.unary import UnaryScores

# Called with the dimension of the features and the number of classes.
PAIR_FUNCTIONS: dict[str, Callable[[int, int], PairFunction]] = {
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
