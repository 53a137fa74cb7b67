"""The re-localization problem of one class: choose a proposal in every bag (paper, eq. reloc_full_opt).

The energy of a selection x, given anchors a (fixed choices in other bags, with weights v_a), is

    E(x) = - sum_i u_i(x_i) - w [ sum over ordered pairs (i, j), i != j, of s(x_i, x_j)
                                  + sum_i sum_a v_a (s(x_i, a) + s(a, x_i)) ]

with w = alpha, or alpha divided by the number of other bags, where an anchor counts as its weight. Without anchors this
is the paper's energy. A `PairScores` object computes pair scores in blocks, so they are never all in memory.
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
_SPECULATION = 16  # changes that ICM computes together on a GPU, which reads all projections even for one


@dataclass(frozen=True)
class Anchors:
    """Fixed choices that the bags being solved are compared with, such as those of other folds or confirmed boxes.

    Attributes
    ----------
    bags : (A,) indices of bags, as the pair scores count them
    proposals : (A,) chosen proposal of each
    weights : (A,) how many bags each choice counts for

    Examples
    --------
    >>> len(Anchors.of(bags=torch.tensor([4, 5]), proposals=torch.tensor([0, 7])))
    2
    """

    bags: Tensor  # (A,) indices of bags in the pair scores
    proposals: Tensor  # (A,)
    weights: Tensor  # (A,) 1 counts as one bag

    @classmethod
    def of(cls, bags: Tensor, proposals: Tensor) -> "Anchors":
        """Anchors of weight 1: each counts as one bag."""
        return cls(bags, proposals, torch.ones(len(bags), device=bags.device))

    def __len__(self) -> int:
        return len(self.bags)


@dataclass(frozen=True)
class Relocalization:
    """The result of re-localization: one proposal per bag, and how reliable each one is.

    Attributes
    ----------
    selection : (M,) index of the selected proposal of every bag
    energy : energy of the selection
    history : state after the initialisation and after every epoch of ICM
    converged : whether no change of a single bag lowers the energy
    cost : (M, B) cost of every proposal if the other bags keep theirs
    gaps : (M,) energy increase if a bag takes its best other proposal and the others keep theirs
    mini_gaps : (M,) gap of the solver in the mini-problem of a bag; NaN without mini-problems
    certified : (M,) whether the mini-problem of a bag was solved to a certified minimum
    """

    selection: Tensor  # (M,)
    energy: float
    history: tuple[Step, ...]
    converged: bool  # no change of a single bag lowers the energy
    cost: Tensor  # (M, B) cost of every proposal if the other bags keep theirs
    gaps: Tensor  # (M,) energy increase if a bag takes its best other proposal and the others keep theirs
    mini_gaps: Tensor  # (M,) the solver's gap in the bag's mini-problem (see `Solution`); NaN without mini-problems
    certified: Tensor  # (M,) whether the bag's mini-problem was solved to a certified minimum


class ObjectiveTerms(NamedTuple):
    """The parts of the objective that depend on the selection; the energy is minus their sum."""

    unary: float
    pairs: float  # including pairs with anchors


class ClassProblem:
    """The re-localization problem of one class (paper, eq. reloc_full_opt): choose one proposal in each of M bags.

    Parameters
    ----------
    unary : unary scores, one vector per bag, or (M, B) with minus infinity where a bag has fewer proposals
    pairs : pair scores on demand, such as a `PairScorer` or a `PairTable`
    anchors : fixed choices of other bags that the bags are compared with; None for none
    alpha : weight of the pair scores
    alpha_scale : "per_bag" divides alpha by the number of other bags, "none" does not (the paper)
    bags : (M,) index in `pairs` of each row of `unary`; by default all bags of `pairs`, in order

    Raises
    ------
    ValueError : there is no bag, a bag has no proposal, or a score or alpha is not finite

    Examples
    --------
    >>> features = torch.randn(6, 10, 4, generator=torch.Generator().manual_seed(0))  # 6 bags of 10 proposals
    >>> problem = ClassProblem(features.sum(dim=2), PairScorer(RelationScores(4), features), alpha=0.5)
    >>> solved = problem.solve(k=3)
    >>> solved.selection.shape, solved.energy <= problem.energy([0] * 6)
    (torch.Size([6]), True)
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
        empty = torch.zeros(0, dtype=torch.int64, device=device)
        self.anchors = Anchors.of(empty, empty) if anchors is None else anchors
        self.computed = 0  # ordered pair scores computed so far

    def __len__(self) -> int:
        return len(self.unary)

    def weight(self, bags: int | None = None) -> float:
        """w, the weight of a pair score in the whole problem, or in a mini-problem of `bags` bags."""
        count = len(self) if bags is None else bags
        return pair_weight(self.alpha, self.alpha_scale, count + float(self.anchors.weights.sum()))

    def anchored(self, bags: int | None = None) -> Tensor:
        """Unary scores plus the weighted pair scores with the anchors: (M, B); `bags` as in `weight`."""
        if not len(self.anchors) or not self.alpha:
            return self.unary
        return self.unary + self.weight(bags) * self._anchor_sums.to(self.unary.dtype)

    @cached_property
    def _anchor_sums(self) -> Tensor:
        anchors = self.anchors
        self.computed += 2 * self.unary.numel() * len(anchors)
        return self.pairs.against(self.bags, anchors.bags, anchors.proposals, anchors.weights).detach()

    def against(self, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the pair scores of all proposals with `chosen` (m,) of bags `rows` (m,), in double precision.

        Weights (m,) give one sum, (M, B); weights (m, g) give g sums, (g, M, B).
        """
        self.computed += 2 * self.unary.numel() * len(chosen)
        sums = self.pairs.against(self.bags, self.bags[rows], chosen, weights).detach().double()
        shape = (*weights.shape[1:], *self.unary.shape)
        if sums.shape != shape:
            raise ValueError(f"pair_scores.against returned shape {tuple(sums.shape)}, not {shape}")
        finite = torch.isfinite(sums.sum(dim=-1)).reshape(-1, len(self)).all(dim=0)
        for row in torch.nonzero(~finite).flatten().tolist():
            raise ValueError(f"bag {int(self.bags[row])}: has a pair score that is not finite")
        return sums

    def conditional(self, selection: Tensor) -> Tensor:
        """Score of every proposal if the other bags keep their proposal in `selection` (M,): (M, B)."""
        if not self.alpha:
            return self.unary
        anchors, chosen = self.anchors, selection.to(self.unary.device)
        all_bags = torch.cat([self.bags, anchors.bags])
        order = all_bags.argsort()
        proposals = torch.cat([chosen, anchors.proposals])[order]
        weights = torch.cat([torch.ones(len(self), device=all_bags.device), anchors.weights])[order]
        summed = self.pairs.against(self.bags, all_bags[order], proposals, weights)
        return self.unary + self.weight() * summed.to(self.unary.dtype)

    def objective_terms(self, selection: Selection) -> ObjectiveTerms:
        """The unary and pair terms of the energy of a selection (M,)."""
        chosen = self.checked(selection, "selection")
        rows = torch.arange(len(self), device=self.unary.device)
        sums = self.against(rows, chosen, torch.ones(len(self), device=rows.device))
        unary = self.unary.double()[rows, chosen].sum()
        with_anchors = self.anchored().double()[rows, chosen].sum()
        pairs = self.weight() * sums[rows, chosen].sum() / 2  # the sums count every pair from both of its bags
        return ObjectiveTerms(float(unary), float(with_anchors - unary + pairs))

    def energy(self, selection: Selection) -> float:
        """Energy of a selection (M,). Raises ValueError if a bag has no such proposal."""
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
        """Run Algorithm 1 of the paper: an initial selection, then ICM over the graph of all bags.

        Parameters
        ----------
        start : "mini-problems", "unary", "random", or a selection (M,)
        k : number of bags in a mini-problem
        solver : name of the solver of the mini-problems
        iterations : maximum number of iterations of the solver
        epochs : maximum number of passes of ICM over the bags
        tolerance : relative gap below which a mini-problem counts as solved
        seed : seed of the random groups, and of the start "random"
        previous : a selection (M,); the energy of the result is at most that of `previous`
        memory : limit on the bytes of pair scores and of the solver's copies of them; by default 2 GiB on a CPU and a
            quarter of the free memory on a GPU
        speculation : number of changes that ICM computes together; it does not affect the selection

        Returns
        -------
        result : Relocalization

        Raises
        ------
        ValueError : an option is out of range, or a pair score is not finite

        Examples
        --------
        >>> problem = ClassProblem(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), PairTable(torch.zeros(2, 2, 2, 2)))
        >>> problem.solve(k=2).selection.tolist()
        [0, 1]
        """
        if k < 2 or epochs < 0 or iterations < 1:
            raise ValueError(f"k is {k}, epochs {epochs}, iterations {iterations}; they must be at least 2, 0 and 1")
        if memory is None:
            memory = torch.cuda.mem_get_info(self.unary.device)[0] // 4 if self.unary.is_cuda else 2 << 30
        if not (0 <= tolerance < math.inf and memory > 0):
            raise ValueError(f"tolerance is {tolerance}, memory {memory}; they must be finite, >= 0 and > 0")
        if speculation is None:
            speculation = _SPECULATION if self.unary.is_cuda else 1
        if speculation < 1:
            raise ValueError(f"speculation is {speculation}; it must be at least 1")
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
            improved = class_icm(self, self.checked(previous, "previous"), epochs, speculation, time.perf_counter())
            result = improved if improved.energy < result.energy else result
        gaps = label_gap(result.cost, result.selection).cpu()
        return Relocalization(
            result.selection, result.energy, result.history, result.converged, result.cost, gaps, mini_gaps, certified
        )

    def checked(self, given: Selection, what: str) -> Tensor:
        """Validate a selection (M,) and copy it to the device of the scores; `what` names it in errors."""
        values = given if isinstance(given, Tensor) else torch.from_numpy(np.asarray(given))
        if values.is_floating_point() or values.shape != (len(self),):
            raise ValueError(f"{what}: must be one integer proposal index for each of the {len(self)} bags")
        selection = values.to(self.unary.device, torch.long, copy=True)
        inside = (selection >= 0) & (selection < self.unary.shape[1])
        exists = inside & ~torch.isinf(self.unary.gather(1, selection.clamp(0, self.unary.shape[1] - 1)[:, None])[:, 0])
        for bag in torch.nonzero(~exists).flatten().tolist():
            raise ValueError(f"{what}: bag {bag} has no proposal {operator.index(int(selection[bag]))}")
        return selection


def _padded(unary: Unary) -> Tensor:
    """Unary scores as (M, B), padded with minus infinity."""
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
        raise ValueError(f"bag {bag}: has no proposal; leave the bag out")
    for bag in torch.nonzero((torch.isnan(scores) | torch.isposinf(scores)).any(dim=1)).flatten().tolist():
        raise ValueError(f"bag {bag}: has a unary score that is not finite")
    return scores
