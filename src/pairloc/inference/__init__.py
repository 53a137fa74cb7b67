"""Graph labelling, and re-localization as one labelling problem per class. Needs only torch and numpy."""

from pairloc.inference.class_problem import Anchors, ClassProblem, Relocalization
from pairloc.inference.pair_scores import NoPairs, PairScores, PairTable
from pairloc.inference.problem import Problem
from pairloc.inference.solution import Solution
from pairloc.inference.solve import SOLVERS, solve, solve_batch

__all__ = [
    "SOLVERS",
    "Anchors",
    "ClassProblem",
    "NoPairs",
    "PairScores",
    "PairTable",
    "Problem",
    "Relocalization",
    "Solution",
    "solve",
    "solve_batch",
]
