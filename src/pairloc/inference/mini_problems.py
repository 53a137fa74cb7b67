"""Mini-problems (paper, Algorithm 1): small random groups of a class's bags, each solved on its own."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options
from pairloc.inference.solve import SOLVERS

if TYPE_CHECKING:
    from pairloc.inference.class_problem import ClassProblem

Group = npt.NDArray[np.int64]  # (K,) rows of the class problem
_COPIES = 6  # copies of a mini-problem's potentials that TRW-S makes on a CPU, those in double precision included


def partition(bags: int, k: int, seed: int) -> list[Group]:
    """Split the bags into round(bags / k) disjoint random groups whose sizes differ by at most one."""
    groups = max(1, round(bags / k))
    return [np.sort(group) for group in np.array_split(np.random.default_rng(seed).permutation(bags), groups)]


def solve_mini_problems(
    problem: "ClassProblem", groups: list[Group], solver: str, options: Options, memory: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve all groups, in batches of equal size; returns selection, gaps and certified, (M,) each.

    `memory` limits the bytes of pairwise potentials in a batch. Raises ValueError for an unknown solver.
    """
    if solver not in SOLVERS:
        raise ValueError(f"there is no solver {solver!r}; known are {', '.join(SOLVERS)}")
    m, b = problem.unary.shape
    selection = problem.unary.argmax(dim=1)
    gaps = torch.full((m,), torch.nan, dtype=torch.float64)
    certified = torch.zeros(m, dtype=torch.bool)
    for size in sorted({len(group) for group in groups}):
        edges = tuple((i, j) for i in range(size) for j in range(i + 1, size))
        batch_size = max(1, memory // (_COPIES * 4 * b * b * max(len(edges), 1)))
        same_size = np.stack([group for group in groups if len(group) == size])
        for chunk in (same_size[first : first + batch_size] for first in range(0, len(same_size), batch_size)):
            members = torch.from_numpy(chunk).to(problem.unary.device)  # (G, K)
            solved = SOLVERS[solver][0](_batch(problem, members, edges), options)
            selection[members] = solved.labels.to(selection.device)
            bound_gap = solved.energy - solved.lower_bound  # infinite if the solver has no bound
            is_certified = bound_gap <= options.tolerance * solved.energy.abs().clamp(min=1)
            certified[members.cpu()] = is_certified.cpu()[:, None].expand(-1, size)
            gaps[members.cpu()] = solved.gaps.cpu()
    return selection, gaps, certified


def _batch(problem: "ClassProblem", members: Tensor, edges: tuple[tuple[int, int], ...]) -> Batch:
    """Mini-problems of groups (G, K) of bags as potentials to minimise; the unary potentials include the anchors."""
    groups, size = members.shape
    unary = problem.anchored(size)
    b = unary.shape[1]
    if edges:
        i, j = (torch.tensor(ends, device=members.device) for ends in zip(*edges, strict=True))
        left, right = (problem.bags[members[:, end].flatten()] for end in (i, j))  # (G * E,)
        blocks = problem.pairs.block(left, right)
        if blocks.shape != (len(left), b, b):
            raise ValueError(f"pair_scores.block returned shape {tuple(blocks.shape)}, not {(len(left), b, b)}")
        blocks = blocks.detach().to(torch.promote_types(blocks.dtype, torch.float32), copy=True)
        table = blocks.view(groups, len(edges), b, b).mul_(-problem.weight(size))
        problem.computed += 2 * table.numel()
    else:
        table = unary.new_zeros(groups, 0, b, b)
    padding = torch.isinf(unary)[members]  # (G, K, B)
    for e, (first, second) in enumerate(edges):
        padded_pairs = padding[:, first, :, None] | padding[:, second, None, :]
        table[:, e].masked_fill_(padded_pairs, 0.0)
    for g, e in torch.nonzero(~torch.isfinite(table.sum(dim=(2, 3)))).tolist():
        pair = [int(members[g, end]) for end in edges[e]]
        raise ValueError(f"bags {pair[0]} and {pair[1]}: have a pair score that is not finite")
    return Batch(-unary[members].to(table.dtype), edges, table)
