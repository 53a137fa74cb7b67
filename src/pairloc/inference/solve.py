"""`solve` and `solve_batch`: every solver by its name."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from pairloc.inference.a_star import a_star
from pairloc.inference.batch import Batch, Options, Solved
from pairloc.inference.bp import bp
from pairloc.inference.exact import exact
from pairloc.inference.icm import block_icm, icm
from pairloc.inference.mean_field import mean_field
from pairloc.inference.problem import Problem
from pairloc.inference.solution import Solution
from pairloc.inference.starts import random, unary
from pairloc.inference.trws import trws

# The solvers, and how many iterations each makes unless told otherwise (a-star: expansions, exact: branches).
SOLVERS: dict[str, tuple[Callable[[Batch, Options], Solved], int]] = {
    "trws": (trws, 200),
    "icm": (icm, 100),
    "block-icm": (block_icm, 100),
    "bp": (bp, 100),
    "mean-field": (mean_field, 50),
    "a-star": (a_star, 20_000),
    "exact": (exact, 2_000),
    "random": (random, 1),
    "unary": (unary, 1),
}


def solve(
    problem: Problem,
    solver: str = "trws",
    *,
    iterations: int | None = None,
    tolerance: float = 1e-6,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float64,
    start: Sequence[int] | None = None,
    fixed: Mapping[int, int] | None = None,
) -> Solution:
    """Find a labelling of low energy.

    `certified` says that energy and bound meet within `tolerance` (of the energy, or absolutely below 1). `start` is
    the labelling that icm and block-icm improve; `fixed` clamps nodes to labels.
    """
    return solve_batch(
        [problem],
        solver,
        iterations=iterations,
        tolerance=tolerance,
        seed=seed,
        device=device,
        dtype=dtype,
        start=None if start is None else [start],
        fixed=None if fixed is None else [fixed],
    )[0]


def solve_batch(
    problems: Sequence[Problem],
    solver: str = "trws",
    *,
    iterations: int | None = None,
    tolerance: float = 1e-6,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float64,
    start: Sequence[Sequence[int]] | None = None,
    fixed: Sequence[Mapping[int, int]] | None = None,
) -> list[Solution]:
    """Solve many problems of one shape (nodes and edges) at once; numbers of labels may differ."""
    if solver not in SOLVERS:
        raise ValueError(f"there is no solver {solver!r}; known are {', '.join(SOLVERS)}")
    function, usual = SOLVERS[solver]
    iterations = usual if iterations is None else iterations
    if iterations < 1 or not 0 <= tolerance < math.inf:
        raise ValueError(f"iterations is {iterations} and tolerance {tolerance}; they are at least 1 and at least 0")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}, not torch.float32 or torch.float64")
    if not problems:
        return []
    if not len(problems[0]):
        return [_nothing() for _ in problems]
    fixed = fixed if fixed is not None else [{} for _ in problems]
    if len(fixed) != len(problems) or (start is not None and len(start) != len(problems)):
        raise ValueError("one start and one map of fixed nodes per problem")
    clamped = [problem.clamped(nodes) if nodes else problem for problem, nodes in zip(problems, fixed, strict=True)]
    if solver in ("exact", "a-star"):
        dtype, device = torch.float64, "cpu"  # they search one problem at a time, and prove
    batch = Batch.of(clamped, dtype, device)
    labels = None if start is None else _start(problems, start, fixed).to(device)
    generator = torch.Generator().manual_seed(seed)
    solved = function(batch, Options(iterations, tolerance, generator, labels))
    precision = 4 * torch.finfo(dtype).eps
    return [_solution(solved, p, problem, fixed[p], tolerance, precision) for p, problem in enumerate(problems)]


def _start(
    problems: Sequence[Problem], start: Sequence[Sequence[int]], fixed: Sequence[Mapping[int, int]]
) -> torch.Tensor:
    """Starting labels (P, N) as the clamped problems count them."""
    for problem, labels in zip(problems, start, strict=True):
        problem.energy(labels)  # says which label is out of range
    rows = [
        [0 if node in nodes else operator.index(label) for node, label in enumerate(labels)]
        for labels, nodes in zip(start, fixed, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.long)


def _solution(
    solved: Solved, p: int, problem: Problem, fixed: Mapping[int, int], tolerance: float, precision: float
) -> Solution:
    """One of the solutions; its bound allows for potentials that were rounded to the solver's precision."""
    labels = solved.labels[p].cpu().numpy().astype(np.int64)
    for node, label in fixed.items():
        labels[node] = label
    energy = problem.energy(labels)
    bound = min(float(solved.lower_bound[p]) - problem.rounding(precision), energy)
    return Solution(
        labels=labels,
        energy=energy,
        lower_bound=bound,
        iterations=int(solved.iterations[p]),
        history=solved.history[:, p].cpu().numpy(),
        certified=math.isfinite(bound) and energy - bound <= tolerance * max(1.0, abs(energy)),
        gaps=solved.gaps[p].cpu().numpy().astype(np.float64),
    )


def _nothing() -> Solution:
    """The solution of a problem without nodes."""
    none = np.zeros(0, dtype=np.int64)
    return Solution(none, 0.0, 0.0, 0, np.zeros((0, 2)), certified=True, gaps=np.zeros(0))
