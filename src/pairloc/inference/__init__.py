"""Graph labelling: exact where it can be, certified where it says so. Needs torch and numpy alone."""

from pairloc.inference.problem import Problem
from pairloc.inference.solution import Solution
from pairloc.inference.solve import SOLVERS, solve, solve_batch

__all__ = ["SOLVERS", "Problem", "Solution", "solve", "solve_batch"]
