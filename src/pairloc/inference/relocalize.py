"""Re-localization of one class (paper, Algorithm 1): mini-problems, then ICM over the graph of all its bags.

The energy of a selection x (eq. reloc_full_opt) is
    E(x) = - sum_i unary_i(x_i) - scale * sum over ordered pairs (i, j), i != j, of score(x_i, x_j),
with scale = alpha, or alpha / (bags - 1) if it is shared out per bag. The pair scores of a class are never held: they
come from a `PairScores` object, in blocks.
"""

import math
import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options, label_gap
from pairloc.inference.solve import SOLVERS

_AHEAD = 16  # changes a GPU computes at once: it reads all projections for one as for sixteen
_COPIES = 6  # of a mini-problem's potentials that TRW-S holds on a CPU, with those in double precision
AlphaScale = Literal["none", "per_bag"]
Unary = Sequence[npt.ArrayLike] | Tensor
Selection = Tensor | npt.NDArray[np.integer] | Sequence[int]


class PairScores(Protocol):
    """Pair scores of the bags of one class, both ordered directions summed: score(e, e') + score(e', e)."""

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """All proposals of bags `left` (n,) against all of bags `right` (n,) -> (n, B, B)."""

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """All proposals of `bags` (n,) against m chosen proposals, summed with `weights` (m,) -> (n, B).

        `chosen` (m,) are proposals of `chosen_bags` (m,). A bag is not compared with itself. With weights (m, g) there
        are g sums, (g, n, B).
        """


class PairTable:
    """Pair scores that are all there, (M, M, B, B): for small classes, and as the reference in tests."""

    def __init__(self, table: Tensor) -> None:
        self.both = table + table.permute(1, 0, 3, 2)  # (M, M, B, B)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairScores`."""
        return self.both[left, right]

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairScores`."""
        scores = self.both.transpose(2, 3)[bags[:, None], chosen_bags, chosen]  # (n, m, B)
        scores = scores * (bags[:, None] != chosen_bags)[..., None]
        return torch.einsum("nmb,m...->...nb", scores, weights.to(scores.dtype))


@dataclass(frozen=True)
class Step:
    """The state after the initialisation (epoch 0) or an epoch of ICM."""

    epoch: int
    energy: float
    changed: int  # bags that got another proposal
    pair_scores: int  # ordered pair scores computed in it
    seconds: float


@dataclass(frozen=True)
class Relocalization:
    """A selection, one proposal a bag, and how far to trust it."""

    selection: Tensor  # (M,)
    energy: float
    history: tuple[Step, ...]
    converged: bool  # no single change helps any more
    gaps: Tensor  # (M,) what the best other proposal of a bag would cost more while the others stay
    mini_gaps: Tensor  # (M,) the same in its mini-problem, where the others may answer; NaN without mini-problems
    certified: Tensor  # (M,) whether its mini-problem was solved to a certified minimum


def relocalize(
    unary: Unary,
    pair_scores: PairScores,
    *,
    alpha: float = 1.0,
    alpha_scale: AlphaScale = "per_bag",
    k: int = 8,
    init: str | Selection = "mini-problems",
    solver: str = "trws",
    iterations: int = 100,
    epochs: int = 10,
    tolerance: float = 1e-4,
    seed: int = 0,
    previous: Selection | None = None,
    fixed: Mapping[int, int] | None = None,
    memory: int | None = None,
    ahead: int | None = None,
) -> Relocalization:
    """Select one proposal a bag so that the energy is low.

    `unary` are the unary scores, a vector a bag or (M, B) with minus infinity where a bag has fewer proposals. `init`
    is "mini-problems" (of `k` bags, by `solver`), "unary", "random", or a selection (M,). With `previous`, a selection,
    the result never has a higher energy than it, in the arithmetic of the pair scores. `fixed` clamps bags.
    `memory` bounds the bytes of pair scores and of the solver's copies of them held at a time: 2 GiB on a CPU unless
    told otherwise, a quarter of what is free on a GPU. `ahead` is how many changes ICM computes at once; the selection
    does not depend on it.
    """
    fixed = fixed or {}
    scores = _clamped(_padded(unary), fixed)
    if alpha_scale not in ("none", "per_bag"):
        raise ValueError(f"alpha_scale is {alpha_scale!r}, not 'none' or 'per_bag'")
    if k < 2 or epochs < 0 or iterations < 1:
        raise ValueError(f"k is {k}, epochs {epochs}, iterations {iterations}; they are at least 2, 0 and 1")
    if memory is None:
        memory = torch.cuda.mem_get_info(scores.device)[0] // 4 if scores.is_cuda else 2 << 30
    if not (math.isfinite(alpha) and 0 <= tolerance < math.inf and memory > 0):
        raise ValueError(f"alpha is {alpha}, tolerance {tolerance}, memory {memory}; none may be infinite or negative")
    if ahead is None:
        ahead = _AHEAD if scores.is_cuda else 1
    if ahead < 1:
        raise ValueError(f"ahead is {ahead}; ICM computes at least one change at a time")
    graph = _ClassGraph(scores, pair_scores, alpha, alpha_scale, ahead)
    start = time.perf_counter()
    certified = torch.zeros(len(scores), dtype=torch.bool)
    mini_gaps = torch.full((len(scores),), torch.nan, dtype=torch.float64)
    if not isinstance(init, str):
        selection = _checked(init, scores, fixed, "init")
    elif init == "mini-problems":
        options = Options(iterations, tolerance, torch.Generator().manual_seed(seed))
        selection, mini_gaps, certified = graph.mini_problems(partition(len(scores), k, seed), solver, options, memory)
    elif init == "random":
        draws = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)).to(scores.device)
        selection = draws.masked_fill(torch.isinf(scores), -1).argmax(dim=1)
    elif init == "unary":
        selection = scores.argmax(dim=1)
    else:
        raise ValueError(f"init is {init!r}, not 'mini-problems', 'unary', 'random' or a selection")
    result = graph.icm(selection, epochs, start)
    if previous is not None:
        other = graph.icm(_checked(previous, scores, fixed, "previous"), epochs, time.perf_counter())
        result = other if other[1] < result[1] else result
    selection, energy, history, converged, cost = result
    return Relocalization(selection, energy, history, converged, label_gap(cost, selection).cpu(), mini_gaps, certified)


def partition(bags: int, k: int, seed: int) -> list[npt.NDArray[np.int64]]:
    """round(bags / k) disjoint random groups that cover every bag; their sizes differ by one at most."""
    groups = max(1, round(bags / k))
    return [np.sort(group) for group in np.array_split(np.random.default_rng(seed).permutation(bags), groups)]


class _ClassGraph:
    """The energy of one class."""

    def __init__(
        self, unary: Tensor, pair_scores: PairScores, alpha: float, alpha_scale: AlphaScale, ahead: int = 1
    ) -> None:
        self.unary, self.pair_scores = unary, pair_scores  # (M, B)
        self.alpha, self.alpha_scale, self.ahead = alpha, alpha_scale, ahead
        self.computed = 0

    def scale(self, bags: int) -> float:
        """The weight of a pair score among so many bags."""
        return self.alpha / max(bags - 1, 1) if self.alpha_scale == "per_bag" else self.alpha

    def mini_problems(
        self, groups: list[npt.NDArray[np.int64]], solver: str, options: Options, memory: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Solve all groups, those of one size as one batch: selection, gaps and certificates, (M,) each."""
        if solver not in SOLVERS:
            raise ValueError(f"there is no solver {solver!r}; known are {', '.join(SOLVERS)}")
        m, b = self.unary.shape
        selection = self.unary.argmax(dim=1)
        gaps = torch.full((m,), torch.nan, dtype=torch.float64)
        certified = torch.zeros(m, dtype=torch.bool)
        for size in sorted({len(group) for group in groups}):
            edges = tuple((i, j) for i in range(size) for j in range(i + 1, size))
            step = max(1, memory // (_COPIES * 4 * b * b * max(len(edges), 1)))
            same = np.stack([group for group in groups if len(group) == size])
            for part in (same[first : first + step] for first in range(0, len(same), step)):
                members = torch.from_numpy(part).to(self.unary.device)  # (G, K)
                solved = SOLVERS[solver][0](self._batch(members, edges), options)
                selection[members] = solved.labels.to(selection.device)
                bound_gap = solved.energy - solved.lower_bound  # infinite where the solver has no bound
                sure = bound_gap <= options.tolerance * solved.energy.abs().clamp(min=1)
                certified[members.cpu()] = sure.cpu()[:, None].expand(-1, size)
                gaps[members.cpu()] = solved.gaps.cpu()
        return selection, gaps, certified

    def _batch(self, members: Tensor, edges: tuple[tuple[int, int], ...]) -> Batch:
        """The mini-problems of groups (G, K) of bags, as potentials to minimise."""
        groups, size = members.shape
        b = self.unary.shape[1]
        if edges:
            i, j = (torch.tensor(ends, device=members.device) for ends in zip(*edges, strict=True))
            left, right = members[:, i].flatten(), members[:, j].flatten()  # (G * E,)
            blocks = self.pair_scores.block(left, right)
            if blocks.shape != (len(left), b, b):
                raise ValueError(f"pair_scores.block gives {tuple(blocks.shape)}, not {(len(left), b, b)}")
            blocks = blocks.detach().to(torch.promote_types(blocks.dtype, torch.float32), copy=True)
            table = blocks.view(groups, len(edges), b, b).mul_(-self.scale(size))
            self.computed += 2 * table.numel()
        else:
            table = self.unary.new_zeros(groups, 0, b, b)
        missing = torch.isinf(self.unary)[members]  # (G, K, B)
        for e, (first, second) in enumerate(edges):
            absent = missing[:, first, :, None] | missing[:, second, None, :]
            table[:, e].masked_fill_(absent, 0.0)
        for g, e in torch.nonzero(~torch.isfinite(table.sum(dim=(2, 3)))).tolist():
            pair = [int(members[g, end]) for end in edges[e]]
            raise ValueError(f"bags {pair[0]} and {pair[1]}: have a pair score that is not finite")
        return Batch(-self.unary[members].to(table.dtype), edges, table)

    def icm(self, selection: Tensor, epochs: int, start: float) -> tuple[Tensor, float, tuple[Step, ...], bool, Tensor]:
        """Take the bags in turn, each the proposal that lowers the energy most, until a turn changes nothing.

        Kept is, for every proposal, its summed pair score with the selection of the other bags; a change of one bag
        adds its new proposal to these sums and takes the old one away. So bags that stay cost nothing: the next bag
        that changes is found at once, by looking at all of them. What the changes after it will be is guessed, from
        the sums as they are, and computed with it; a guess that does not come true is thrown away.
        """
        m = len(self.unary)
        bags = torch.arange(m, device=self.unary.device)
        selection = selection.clone()
        scale = self.scale(m)
        sums = self._against(bags, bags, selection, torch.ones(m, device=bags.device))  # (M, B)
        unary = self.unary.double()
        cost = -(unary + scale * sums)
        history = [Step(0, self._energy(selection, sums), 0, self._take_count(), time.perf_counter() - start)]
        converged = False
        for epoch in range(1, epochs + 1):
            turn, changed = 0, 0
            while coming := self._next(cost, selection, turn):
                changes = self._changes(bags, selection, coming)  # (g, M, B)
                true = self._come_true(unary + scale * sums, scale * changes, selection, coming)
                sums += changes[:true].sum(dim=0)
                for bag, new in coming[:true]:
                    selection[bag] = new
                    turn, changed = bag + 1, changed + 1
                cost = -(unary + scale * sums)
            seconds = time.perf_counter() - start
            history.append(Step(epoch, self._energy(selection, sums), changed, self._take_count(), seconds))
            converged = changed == 0
            if converged:
                break
        if not converged:
            converged = not self._next(cost, selection, 0)
        return selection, history[-1].energy, tuple(history), converged, cost

    def _next(self, cost: Tensor, selection: Tensor, turn: int) -> list[tuple[int, int]]:
        """The first bags from `turn` on that have a cheaper proposal than their own, with the cheapest."""
        cheaper, place = _cheaper(cost, selection)
        found = torch.nonzero(cheaper[turn:])[: self.ahead, 0] + turn
        return [(bag, new) for bag, new in torch.stack([found, place[found]], dim=1).tolist()]

    def _changes(self, bags: Tensor, selection: Tensor, coming: list[tuple[int, int]]) -> Tensor:
        """What each of g changes of a bag adds to the sums: (g, M, B)."""
        bag, new = torch.tensor(coming, device=bags.device).T
        both = torch.eye(len(coming), device=bags.device)
        return self._against(bags, torch.cat([bag, bag]), torch.cat([new, selection[bag]]), torch.cat([both, -both]))

    @staticmethod
    def _come_true(scores: Tensor, changes: Tensor, selection: Tensor, coming: list[tuple[int, int]]) -> int:
        """How many of the guessed changes ICM would make one after the other, from scores (M, B) as they are."""
        if len(coming) == 1:
            return 1
        bag, new = torch.tensor(coming, device=scores.device).T
        chosen = selection.repeat(len(coming) - 1, 1)  # (g - 1, M), after the first change, the second, ...
        for place, (changed, proposal) in enumerate(coming[:-1]):
            chosen[place:, changed] = proposal
        cheaper, best = _cheaper(-(scores + changes[:-1].cumsum(dim=0)), chosen)
        cheaper &= torch.arange(len(scores), device=scores.device) > bag[:-1, None]
        first = cheaper.int().argmax(dim=1)
        true = cheaper.any(dim=1) & (first == bag[1:]) & (best.gather(1, bag[1:, None])[:, 0] == new[1:])
        return 1 + int(true.cumprod(dim=0).sum())

    def _energy(self, selection: Tensor, sums: Tensor) -> float:
        unary = self.unary.double().gather(1, selection[:, None]).sum()
        pairs = sums.gather(1, selection[:, None]).sum() / 2  # every pair was met from both its ends
        return float(-unary - self.scale(len(selection)) * pairs)

    def _against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        self.computed += 2 * self.unary.numel() * len(chosen)
        sums = self.pair_scores.against(bags, chosen_bags, chosen, weights).detach().double()
        shape = (*weights.shape[1:], *self.unary.shape)
        if sums.shape != shape:
            raise ValueError(f"pair_scores.against gives {tuple(sums.shape)}, not {shape}")
        finite = torch.isfinite(sums.sum(dim=-1)).reshape(-1, len(bags)).all(dim=0)
        for bag in torch.nonzero(~finite).flatten().tolist():
            raise ValueError(f"bag {int(bags[bag])}: has a pair score that is not finite")
        return sums

    def _take_count(self) -> int:
        computed, self.computed = self.computed, 0
        return computed


def _cheaper(cost: Tensor, selection: Tensor) -> tuple[Tensor, Tensor]:
    """Whether bags have a cheaper proposal than their own (..., M), and the cheapest: (..., M, B), (..., M)."""
    own = cost.gather(-1, selection[..., None])[..., 0]
    least, place = cost.min(dim=-1)
    return least < own - 1e-9 * (1 + own.abs()), place


def _padded(unary: Unary) -> Tensor:
    """Unary scores as (M, B), minus infinity where a bag has no such proposal."""
    if isinstance(unary, Tensor):
        scores = unary.detach() if unary.is_floating_point() else unary.double()
    else:
        bags = [torch.from_numpy(np.asarray(bag, dtype=np.float64).reshape(-1)) for bag in unary]
        scores = torch.full((len(bags), max((len(bag) for bag in bags), default=1)), -torch.inf, dtype=torch.float64)
        for row, bag in enumerate(bags):
            scores[row, : len(bag)] = bag
    if scores.ndim != 2 or not len(scores):
        raise ValueError(f"unary scores have shape {tuple(scores.shape)}, not (bags, proposals) with at least one bag")
    for bag in torch.nonzero(torch.isneginf(scores).all(dim=1)).flatten().tolist():
        raise ValueError(f"bag {bag}: has no proposal")
    for bag in torch.nonzero((torch.isnan(scores) | torch.isposinf(scores)).any(dim=1)).flatten().tolist():
        raise ValueError(f"bag {bag}: has a unary score that is not finite")
    return scores


def _clamped(scores: Tensor, fixed: Mapping[int, int]) -> Tensor:
    """A fixed bag keeps its one proposal."""
    scores = scores.clone()
    for bag, proposal in ((operator.index(bag), operator.index(proposal)) for bag, proposal in fixed.items()):
        if not (0 <= bag < len(scores) and 0 <= proposal < scores.shape[1]) or torch.isinf(scores[bag, proposal]):
            raise ValueError(f"bag {bag}: is fixed to proposal {proposal}, which is not there")
        own = scores[bag, proposal].clone()
        scores[bag] = -torch.inf
        scores[bag, proposal] = own
    return scores


def _checked(given: Selection, scores: Tensor, fixed: Mapping[int, int], what: str) -> Tensor:
    """A selection (M,) that is possible; fixed bags are moved to their proposal."""
    values = given if isinstance(given, Tensor) else torch.from_numpy(np.asarray(given))
    if values.is_floating_point() or values.shape != (len(scores),):
        raise ValueError(f"{what}: is not one proposal for each of the {len(scores)} bags")
    selection = values.to(scores.device, torch.long, copy=True)
    for bag in torch.nonzero((selection < 0) | (selection >= scores.shape[1])).flatten().tolist():
        raise ValueError(f"{what}: bag {bag} has no proposal {int(selection[bag])}")
    for bag, proposal in fixed.items():
        selection[bag] = proposal
    for bag in torch.nonzero(torch.isinf(scores.gather(1, selection[:, None])[:, 0])).flatten().tolist():
        raise ValueError(f"{what}: bag {bag} has no proposal {int(selection[bag])}")
    return selection
