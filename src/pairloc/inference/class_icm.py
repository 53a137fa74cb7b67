"""ICM over the graph of all bags of a class: one bag changes at a time, and the energy never rises.

For every proposal, the sum of its pair scores with the selection of the other bags is stored. When a bag changes, the
scores with its new proposal are added to these sums and those with the old one subtracted. So bags that keep their
proposal cost nothing, and one comparison over all bags gives the next one to change. Speculation predicts the changes
after it from the current sums and computes their updates in the same call; wrong predictions are discarded.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pairloc.inference.class_problem import ClassProblem

Change = tuple[int, int]  # a bag (row of the problem) and its new proposal


@dataclass(frozen=True)
class Step:
    """The state after the initialisation (epoch 0) or an epoch of ICM."""

    epoch: int
    energy: float
    changed: int  # number of bags whose proposal changed
    pair_scores: int  # ordered pair scores computed in this epoch
    seconds: float  # since the start
    selection: Tensor  # (M,) on the CPU


@dataclass(frozen=True)
class IcmResult:
    """The selection that ICM ended with."""

    selection: Tensor  # (M,)
    energy: float
    history: tuple[Step, ...]
    converged: bool  # no change of a single bag lowers the energy
    cost: Tensor  # (M, B) cost of every proposal if the other bags keep theirs


def class_icm(problem: "ClassProblem", start: Tensor, epochs: int, speculation: int, began: float) -> IcmResult:
    """Visit the bags in turn and give each its best proposal, until an epoch changes nothing.

    `start` (M,) is the initial selection, `speculation` the number of changes computed together, `began` the
    `time.perf_counter()` from which the history counts.
    """
    rows = torch.arange(len(problem), device=problem.unary.device)
    selection, weight = start.clone(), problem.weight()
    unary = problem.anchored().double()
    sums = problem.against(rows, selection, torch.ones(len(rows), device=rows.device))  # (M, B)
    cost = -(unary + weight * sums)

    def step(epoch: int, changed: int) -> Step:
        energy = selected_energy(unary, sums, selection, weight)
        computed, problem.computed = problem.computed, 0
        seconds = time.perf_counter() - began
        return Step(epoch, energy, changed, computed, seconds, selection.cpu().clone())

    history = [step(0, 0)]
    converged = False
    for epoch in range(1, epochs + 1):
        next_bag, changed = 0, 0
        while predicted := _predict_changes(cost, selection, next_bag, speculation):
            updates = _updates(problem, selection, predicted)  # (g, M, B)
            correct = _count_correct(unary + weight * sums, weight * updates, selection, predicted)
            sums += updates[:correct].sum(dim=0)
            for bag, new in predicted[:correct]:
                selection[bag] = new
                next_bag, changed = bag + 1, changed + 1
            cost = -(unary + weight * sums)
        history.append(step(epoch, changed))
        converged = changed == 0
        if converged:
            break
    if not converged:
        converged = not _predict_changes(cost, selection, 0, 1)
    return IcmResult(selection, history[-1].energy, tuple(history), converged, cost)


def selected_energy(unary: Tensor, sums: Tensor, selection: Tensor, weight: float) -> float:
    """Energy of a selection (M,), given unary scores (M, B) and sums (M, B) of pair scores with it."""
    pairs = sums.gather(1, selection[:, None]).sum() / 2  # the sums count every pair from both of its bags
    return float(-unary.gather(1, selection[:, None]).sum() - weight * pairs)


def _predict_changes(cost: Tensor, selection: Tensor, first_bag: int, limit: int) -> list[Change]:
    """The first `limit` bags from `first_bag` on that have a cheaper proposal, each with its cheapest.

    The first change is certain; it may invalidate the ones after it.
    """
    improvable, best = _improvable(cost, selection)
    bags = torch.nonzero(improvable[first_bag:])[:limit, 0] + first_bag
    return [(bag, new) for bag, new in torch.stack([bags, best[bags]], dim=1).tolist()]


def _updates(problem: "ClassProblem", selection: Tensor, predicted: list[Change]) -> Tensor:
    """What each of g changes adds to the sums: (g, M, B)."""
    bag, new = torch.tensor(predicted, device=selection.device).T
    identity = torch.eye(len(predicted), device=selection.device)
    weights = torch.cat([identity, -identity])  # (2 g, g)
    return problem.against(torch.cat([bag, bag]), torch.cat([new, selection[bag]]), weights)


def _count_correct(scores: Tensor, updates: Tensor, selection: Tensor, predicted: list[Change]) -> int:
    """How many of the predicted changes sequential ICM would make, starting from the current scores (M, B)."""
    if len(predicted) == 1:
        return 1
    bag, new = torch.tensor(predicted, device=scores.device).T
    chosen = selection.repeat(len(predicted) - 1, 1)  # (g - 1, M), row k after changes 0 to k
    for index, (changed, proposal) in enumerate(predicted[:-1]):
        chosen[index:, changed] = proposal
    improvable, best = _improvable(-(scores + updates[:-1].cumsum(dim=0)), chosen)
    improvable &= torch.arange(len(scores), device=scores.device) > bag[:-1, None]
    first = improvable.int().argmax(dim=1)
    correct = improvable.any(dim=1) & (first == bag[1:]) & (best.gather(1, bag[1:, None])[:, 0] == new[1:])
    return 1 + int(correct.cumprod(dim=0).sum())


def _improvable(cost: Tensor, selection: Tensor) -> tuple[Tensor, Tensor]:
    """Whether bags have a cheaper proposal than the selected one, and the cheapest: (..., M, B) -> (..., M) each."""
    selected = cost.gather(-1, selection[..., None])[..., 0]
    lowest, best = cost.min(dim=-1)
    return lowest < selected - 1e-9 * (1 + selected.abs()), best
