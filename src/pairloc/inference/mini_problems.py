"""Mini-problems (paper, Algorithm 1): small random groups of a class's bags, each solved by itself."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options
from pairloc.inference.solve import SOLVERS

if TYPE_CHECKING:
    from pairloc.inference.class_problem import ClassProblem

Group = npt.NDArray[np.int64]
_COPIES = 6  # of a mini-problem's potentials that TRW-S holds on a CPU, with those in double precision


def partition(bags: int, k: int, seed: int) -> list[Group]:
    """round(bags / k) disjoint random groups that cover every bag; their sizes differ by one at most."""
    groups = max(1, round(bags / k))
    return [np.sort(group) for group in np.array_split(np.random.default_rng(seed).permutation(bags), groups)]


def solve_mini_problems(
    problem: "ClassProblem", groups: list[Group], solver: str, options: Options, memory: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve all groups, those of one size as one batch: selection, gaps and certificates, (M,) each."""
    if solver not in SOLVERS:
        raise ValueError(f"there is no solver {solver!r}; known are {', '.join(SOLVERS)}")
    m, b = problem.unary.shape
    selection = problem.unary.argmax(dim=1)
    gaps = torch.full((m,), torch.nan, dtype=torch.float64)
    certified = torch.zeros(m, dtype=torch.bool)
    for size in sorted({len(group) for group in groups}):
        edges = tuple((i, j) for i in range(size) for j in range(i + 1, size))
        step = max(1, memory // (_COPIES * 4 * b * b * max(len(edges), 1)))
        same = np.stack([group for group in groups if len(group) == size])
        for part in (same[first : first + step] for first in range(0, len(same), step)):
            members = torch.from_numpy(part).to(problem.unary.device)  # (G, K)
            solved = SOLVERS[solver][0](_batch(problem, members, edges), options)
            selection[members] = solved.labels.to(selection.device)
            bound_gap = solved.energy - solved.lower_bound  # infinite where the solver has no bound
            sure = bound_gap <= options.tolerance * solved.energy.abs().clamp(min=1)
            certified[members.cpu()] = sure.cpu()[:, None].expand(-1, size)
            gaps[members.cpu()] = solved.gaps.cpu()
    return selection, gaps, certified


def _batch(problem: "ClassProblem", members: Tensor, edges: tuple[tuple[int, int], ...]) -> Batch:
    """The mini-problems of groups (G, K) of bags, as potentials to minimise; anchors are part of the unary ones."""
    groups, size = members.shape
    unary = problem.anchored(size)
    b = unary.shape[1]
    if edges:
        i, j = (torch.tensor(ends, device=members.device) for ends in zip(*edges, strict=True))
        left, right = (problem.bags[members[:, end].flatten()] for end in (i, j))  # (G * E,)
        blocks = problem.pairs.block(left, right)
        if blocks.shape != (len(left), b, b):
            raise ValueError(f"pair_scores.block gives {tuple(blocks.shape)}, not {(len(left), b, b)}")
        blocks = blocks.detach().to(torch.promote_types(blocks.dtype, torch.float32), copy=True)
        table = blocks.view(groups, len(edges), b, b).mul_(-problem.weight(size))
        problem.computed += 2 * table.numel()
    else:
        table = unary.new_zeros(groups, 0, b, b)
    missing = torch.isinf(unary)[members]  # (G, K, B)
    for e, (first, second) in enumerate(edges):
        absent = missing[:, first, :, None] | missing[:, second, None, :]
        table[:, e].masked_fill_(absent, 0.0)
    for g, e in torch.nonzero(~torch.isfinite(table.sum(dim=(2, 3)))).tolist():
        pair = [int(members[g, end]) for end in edges[e]]
        raise ValueError(f"bags {pair[0]} and {pair[1]}: have a pair score that is not finite")
    return Batch(-unary[members].to(table.dtype), edges, table)
