"""`solve` and `solve_batch`: run a solver by its name."""

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

# Solvers by name, with their default number of iterations (a-star counts expansions, exact counts splits).
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

    Parameters
    ----------
    problem : the graph and its potentials
    solver : a name of `SOLVERS`; "trws" finds the optimum of most problems and says so
    iterations : limit on iterations, or on branches and expansions of a search; by default the solver's own
    tolerance : the solution is certified if energy and bound agree within it, relative to the energy (absolute below 1)
    seed : seed of solvers that draw random numbers
    device, dtype : where and in which precision to compute
    start : (N,) labelling that "icm" and "block-icm" improve
    fixed : maps nodes to labels they must take

    Returns
    -------
    solution : Solution

    Raises
    ------
    ValueError : the solver is unknown, or an option is out of range

    Examples
    --------
    >>> solve(Problem([[0.0, 1.0], [3.0, 0.0]], {(0, 1): [[0.0, 2.0], [2.0, 0.0]]})).labels
    array([1, 1])
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
    """Solve problems with the same nodes and edges together; their numbers of labels may differ. See `solve`."""
    if solver not in SOLVERS:
        raise ValueError(f"there is no solver {solver!r}; known are {', '.join(SOLVERS)}")
    function, default_iterations = SOLVERS[solver]
    iterations = default_iterations if iterations is None else iterations
    if iterations < 1 or not 0 <= tolerance < math.inf:
        raise ValueError(
            f"iterations is {iterations} and tolerance {tolerance}; they must be at least 1 and a finite number >= 0"
        )
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}, not torch.float32 or torch.float64")
    if not problems:
        return []
    if not len(problems[0]):
        return [_empty_solution() for _ in problems]
    fixed = fixed if fixed is not None else [{} for _ in problems]
    if len(fixed) != len(problems) or (start is not None and len(start) != len(problems)):
        raise ValueError(f"start and fixed must have one entry for each of the {len(problems)} problems")
    clamped = [problem.clamped(nodes) if nodes else problem for problem, nodes in zip(problems, fixed, strict=True)]
    if solver in ("exact", "a-star"):
        dtype, device = torch.float64, "cpu"  # these search one problem at a time and prove optimality
    batch = Batch.of(clamped, dtype, device)
    labels = None if start is None else _start(problems, start, fixed).to(device)
    generator = torch.Generator().manual_seed(seed)
    solved = function(batch, Options(iterations, tolerance, generator, labels))
    precision = 4 * torch.finfo(dtype).eps
    return [_solution(solved, p, problem, fixed[p], tolerance, precision) for p, problem in enumerate(problems)]


def _start(
    problems: Sequence[Problem], start: Sequence[Sequence[int]], fixed: Sequence[Mapping[int, int]]
) -> torch.Tensor:
    """Starting labels (P, N) for the clamped problems, in which a fixed node has only label 0."""
    for problem, labels in zip(problems, start, strict=True):
        problem.energy(labels)  # raises if a label is out of range
    rows = [
        [0 if node in nodes else operator.index(label) for node, label in enumerate(labels)]
        for labels, nodes in zip(start, fixed, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.long)


def _solution(
    solved: Solved, p: int, problem: Problem, fixed: Mapping[int, int], tolerance: float, precision: float
) -> Solution:
    """The solution of problem p; its bound allows for potentials rounded to the solver's precision."""
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


def _empty_solution() -> Solution:
    """The solution of a problem without nodes."""
    no_labels = np.zeros(0, dtype=np.int64)
    return Solution(no_labels, 0.0, 0.0, 0, np.zeros((0, 2)), certified=True, gaps=np.zeros(0))
