"""The problem of one class: choose a proposal in every bag (paper, eq. reloc_full_opt).

The energy of a selection x, given anchors a (fixed choices of other bags, with weights v_a), is

    E(x) = - sum_i u_i(x_i) - w [ sum over ordered pairs (i, j), i != j, of s(x_i, x_j)
                                  + sum_i sum_a v_a (s(x_i, a) + s(a, x_i)) ]

with w = alpha, or alpha divided by the number of other bags, anchors counted by their weight. Without anchors this is
the paper's energy. Pair scores come in blocks from a `PairScores` object and are never all held.
"""

import math
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pairloc.inference.batch import Options, label_gap
from pairloc.inference.class_icm import Step, class_icm
from pairloc.inference.mini_problems import partition, solve_mini_problems
from pairloc.inference.pair_scores import AlphaScale, PairScores, pair_weight

Unary = Sequence[npt.ArrayLike] | Tensor
Selection = Tensor | npt.NDArray[np.integer] | Sequence[int]
_SPECULATION = 16  # changes that ICM computes at once on a GPU: it reads all projections for one as for sixteen


@dataclass(frozen=True)
class Anchors:
    """Fixed choices that the bags being solved are compared with: bags of other folds, confirmed boxes."""

    bags: Tensor  # (A,) as the pair scores count bags
    proposals: Tensor  # (A,)
    weights: Tensor  # (A,)

    @classmethod
    def of(cls, bags: Tensor, proposals: Tensor) -> "Anchors":
        """Choices that count as much as any other bag's."""
        return cls(bags, proposals, torch.ones(len(bags), device=bags.device))

    def __len__(self) -> int:
        return len(self.bags)


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


class ObjectiveTerms(NamedTuple):
    """The parts of the objective that depend on the selection; the energy is minus their sum."""

    unary: float
    pairs: float  # with the anchors'


class ClassProblem:
    """Unary scores, pair scores and anchors of one class.

    `unary` holds the unary scores, a vector a bag or (M, B) with minus infinity where a bag has fewer proposals.
    `bags` (M,) says which bags of `pairs` its rows are; all of them in order unless given.

    >>> problem = ClassProblem(unary, pairs, alpha=1.0)
    >>> problem.solve().selection
    """

    def __init__(
        self,
        unary: Unary,
        pairs: PairScores,
        anchors: Anchors | None = None,
        *,
        alpha: float = 1.0,
        alpha_scale: AlphaScale = "per_bag",
        bags: Tensor | None = None,
    ) -> None:
        if alpha_scale not in ("none", "per_bag"):
            raise ValueError(f"alpha_scale is {alpha_scale!r}, not 'none' or 'per_bag'")
        if not math.isfinite(alpha):
            raise ValueError(f"alpha is {alpha}, which is not finite")
        self.unary = _padded(unary)  # (M, B)
        device = self.unary.device
        self.pairs, self.alpha, self.alpha_scale = pairs, alpha, alpha_scale
        self.bags = torch.arange(len(self.unary), device=device) if bags is None else bags.to(device)
        none = torch.zeros(0, dtype=torch.int64, device=device)
        self.anchors = Anchors.of(none, none) if anchors is None else anchors
        self.computed = 0  # ordered pair scores so far

    def __len__(self) -> int:
        return len(self.unary)

    def weight(self, bags: int | None = None) -> float:
        """w, the weight of a pair score in the whole problem, or in a mini-problem of so many bags."""
        count = len(self) if bags is None else bags
        return pair_weight(self.alpha, self.alpha_scale, count + float(self.anchors.weights.sum()))

    def anchored(self, bags: int | None = None) -> Tensor:
        """Unary scores with what the anchors add to them: (M, B); `bags` as in `weight`."""
        if not len(self.anchors) or not self.alpha:
            return self.unary
        return self.unary + self.weight(bags) * self._anchor_sums.to(self.unary.dtype)

    @cached_property
    def _anchor_sums(self) -> Tensor:
        anchors = self.anchors
        self.computed += 2 * self.unary.numel() * len(anchors)
        return self.pairs.against(self.bags, anchors.bags, anchors.proposals, anchors.weights).detach()

    def against(self, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Summed pair scores of all proposals with those `chosen` (m,) in bags `rows` (m,), in double: (M, B)."""
        self.computed += 2 * self.unary.numel() * len(chosen)
        sums = self.pairs.against(self.bags, self.bags[rows], chosen, weights).detach().double()
        shape = (*weights.shape[1:], *self.unary.shape)
        if sums.shape != shape:
            raise ValueError(f"pair_scores.against gives {tuple(sums.shape)}, not {shape}")
        finite = torch.isfinite(sums.sum(dim=-1)).reshape(-1, len(self)).all(dim=0)
        for row in torch.nonzero(~finite).flatten().tolist():
            raise ValueError(f"bag {int(self.bags[row])}: has a pair score that is not finite")
        return sums

    def conditional(self, selection: Tensor) -> Tensor:
        """The score of every proposal while the other bags keep theirs of `selection` (M,): (M, B)."""
        if not self.alpha:
            return self.unary
        anchors, chosen = self.anchors, selection.to(self.unary.device)
        everyone = torch.cat([self.bags, anchors.bags])
        order = everyone.argsort()
        proposals = torch.cat([chosen, anchors.proposals])[order]
        weights = torch.cat([torch.ones(len(self), device=everyone.device), anchors.weights])[order]
        summed = self.pairs.against(self.bags, everyone[order], proposals, weights)
        return self.unary + self.weight() * summed.to(self.unary.dtype)

    def objective_terms(self, selection: Selection) -> ObjectiveTerms:
        """The two sums of the energy of a selection (M,)."""
        chosen = self.checked(selection, "selection")
        rows = torch.arange(len(self), device=self.unary.device)
        sums = self.against(rows, chosen, torch.ones(len(self), device=rows.device))
        unary = self.unary.double()[rows, chosen].sum()
        with_anchors = self.anchored().double()[rows, chosen].sum()
        pairs = self.weight() * sums[rows, chosen].sum() / 2  # every pair was met from both its ends
        return ObjectiveTerms(float(unary), float(with_anchors - unary + pairs))

    def energy(self, selection: Selection) -> float:
        """E of a selection (M,)."""
        return -sum(self.objective_terms(selection))

    def solve(
        self,
        start: str | Selection = "mini-problems",
        *,
        k: int = 8,
        solver: str = "trws",
        iterations: int = 100,
        epochs: int = 10,
        tolerance: float = 1e-4,
        seed: int = 0,
        previous: Selection | None = None,
        memory: int | None = None,
        speculation: int | None = None,
    ) -> Relocalization:
        """Algorithm 1: a start, then ICM over the graph of all bags.

        `start` is "mini-problems" (of `k` bags, by `solver`), "unary", "random", or a selection (M,). With `previous`,
        a selection, the result never has a higher energy than it. `memory` bounds the bytes of pair scores and of the
        solver's copies of them held at a time: 2 GiB on a CPU unless told otherwise, a quarter of what is free on a
        GPU. `speculation` is how many changes ICM computes at once; the selection does not depend on it.
        """
        if k < 2 or epochs < 0 or iterations < 1:
            raise ValueError(f"k is {k}, epochs {epochs}, iterations {iterations}; they are at least 2, 0 and 1")
        if memory is None:
            memory = torch.cuda.mem_get_info(self.unary.device)[0] // 4 if self.unary.is_cuda else 2 << 30
        if not (0 <= tolerance < math.inf and memory > 0):
            raise ValueError(f"tolerance is {tolerance}, memory {memory}; neither may be infinite or negative")
        if speculation is None:
            speculation = _SPECULATION if self.unary.is_cuda else 1
        if speculation < 1:
            raise ValueError(f"speculation is {speculation}; ICM computes at least one change at a time")
        began = time.perf_counter()
        certified = torch.zeros(len(self), dtype=torch.bool)
        mini_gaps = torch.full((len(self),), torch.nan, dtype=torch.float64)
        if not isinstance(start, str):
            selection = self.checked(start, "start")
        elif start == "mini-problems":
            options = Options(iterations, tolerance, torch.Generator().manual_seed(seed))
            groups = partition(len(self), k, seed)
            selection, mini_gaps, certified = solve_mini_problems(self, groups, solver, options, memory)
        elif start == "random":
            draws = torch.rand(self.unary.shape, generator=torch.Generator().manual_seed(seed)).to(self.unary.device)
            selection = draws.masked_fill(torch.isinf(self.unary), -1).argmax(dim=1)
        elif start == "unary":
            selection = self.anchored().argmax(dim=1)
        else:
            raise ValueError(f"start is {start!r}, not 'mini-problems', 'unary', 'random' or a selection")
        result = class_icm(self, selection, epochs, speculation, began)
        if previous is not None:
            other = class_icm(self, self.checked(previous, "previous"), epochs, speculation, time.perf_counter())
            result = other if other.energy < result.energy else result
        gaps = label_gap(result.cost, result.selection).cpu()
        return Relocalization(
            result.selection, result.energy, result.history, result.converged, gaps, mini_gaps, certified
        )

    def checked(self, given: Selection, what: str) -> Tensor:
        """A selection (M,) that is possible, on the device of the scores."""
        values = given if isinstance(given, Tensor) else torch.from_numpy(np.asarray(given))
        if values.is_floating_point() or values.shape != (len(self),):
            raise ValueError(f"{what}: is not one proposal for each of the {len(self)} bags")
        selection = values.to(self.unary.device, torch.long, copy=True)
        inside = (selection >= 0) & (selection < self.unary.shape[1])
        there = inside & ~torch.isinf(self.unary.gather(1, selection.clamp(0, self.unary.shape[1] - 1)[:, None])[:, 0])
        for bag in torch.nonzero(~there).flatten().tolist():
            raise ValueError(f"{what}: bag {bag} has no proposal {operator.index(int(selection[bag]))}")
        return selection


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
