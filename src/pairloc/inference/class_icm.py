"""ICM over the graph of all bags of a class: one bag at a time, never a higher energy.

Kept is, for every proposal, its summed pair score with the selection of the other bags; a change of one bag adds its
new proposal to these sums and takes the old one away. So bags that stay cost nothing: the next bag that changes is
found at once, by looking at all of them. What the changes after it will be is guessed from the sums as they are, and
computed with it (speculation); a guess that does not come true is thrown away.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pairloc.inference.class_problem import ClassProblem

Change = tuple[int, int]  # a bag and its new proposal


@dataclass(frozen=True)
class Step:
    """The state after the initialisation (epoch 0) or an epoch of ICM."""

    epoch: int
    energy: float
    changed: int  # bags that got another proposal
    pair_scores: int  # ordered pair scores computed in it
    seconds: float


@dataclass(frozen=True)
class Descended:
    """Where ICM ended."""

    selection: Tensor  # (M,)
    energy: float
    history: tuple[Step, ...]
    converged: bool
    cost: Tensor  # (M, B) of every proposal while the other bags stay


def class_icm(problem: "ClassProblem", start: Tensor, epochs: int, speculation: int, began: float) -> Descended:
    """Take the bags in turn, each the proposal that lowers the energy most, until a turn changes nothing."""
    rows = torch.arange(len(problem), device=problem.unary.device)
    selection, weight = start.clone(), problem.weight()
    unary = problem.anchored().double()
    sums = problem.against(rows, selection, torch.ones(len(rows), device=rows.device))  # (M, B)
    cost = -(unary + weight * sums)

    def step(epoch: int, changed: int) -> Step:
        pairs = sums.gather(1, selection[:, None]).sum() / 2  # every pair was met from both its ends
        energy = float(-unary.gather(1, selection[:, None]).sum() - weight * pairs)
        computed, problem.computed = problem.computed, 0
        return Step(epoch, energy, changed, computed, time.perf_counter() - began)

    history = [step(0, 0)]
    converged = False
    for epoch in range(1, epochs + 1):
        turn, changed = 0, 0
        while coming := _next(cost, selection, turn, speculation):
            changes = _changes(problem, selection, coming)  # (g, M, B)
            true = _come_true(unary + weight * sums, weight * changes, selection, coming)
            sums += changes[:true].sum(dim=0)
            for bag, new in coming[:true]:
                selection[bag] = new
                turn, changed = bag + 1, changed + 1
            cost = -(unary + weight * sums)
        history.append(step(epoch, changed))
        converged = changed == 0
        if converged:
            break
    if not converged:
        converged = not _next(cost, selection, 0, 1)
    return Descended(selection, history[-1].energy, tuple(history), converged, cost)


def _next(cost: Tensor, selection: Tensor, turn: int, most: int) -> list[Change]:
    """The first bags from `turn` on that have a cheaper proposal than their own, with the cheapest."""
    cheaper, place = _cheaper(cost, selection)
    found = torch.nonzero(cheaper[turn:])[:most, 0] + turn
    return [(bag, new) for bag, new in torch.stack([found, place[found]], dim=1).tolist()]


def _changes(problem: "ClassProblem", selection: Tensor, coming: list[Change]) -> Tensor:
    """What each of g changes of a bag adds to the sums: (g, M, B)."""
    bag, new = torch.tensor(coming, device=selection.device).T
    both = torch.eye(len(coming), device=selection.device)
    return problem.against(torch.cat([bag, bag]), torch.cat([new, selection[bag]]), torch.cat([both, -both]))


def _come_true(scores: Tensor, changes: Tensor, selection: Tensor, coming: list[Change]) -> int:
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


def _cheaper(cost: Tensor, selection: Tensor) -> tuple[Tensor, Tensor]:
    """Whether bags have a cheaper proposal than their own (..., M), and the cheapest: (..., M, B), (..., M)."""
    own = cost.gather(-1, selection[..., None])[..., 0]
    least, place = cost.min(dim=-1)
    return least < own - 1e-9 * (1 + own.abs()), place
