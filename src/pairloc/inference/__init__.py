"""Graph labelling: exact where it can be, certified where it says so. Needs torch and numpy alone."""

from pairloc.inference.problem import Problem
from pairloc.inference.relocalize import PairScores, PairTable, Relocalization, relocalize
from pairloc.inference.solution import Solution
from pairloc.inference.solve import SOLVERS, solve, solve_batch

__all__ = [
    "SOLVERS",
    "PairScores",
    "PairTable",
    "Problem",
    "Relocalization",
    "Solution",
    "relocalize",
    "solve",
    "solve_batch",
]
