"""Exclusion: the tags of one image choose different boxes (in the paper, y(e) is one class or background)."""

import torch
from torch import Tensor

_MAX_VISITS = 20_000  # limit of the proposals looked at for one image, some milliseconds


def distinct(cost: Tensor, apart: Tensor) -> Tensor:
    """Choose a proposal for every tag of an image, all of them apart, with the lowest sum of costs: (T,).

    `cost` (T, B) is infinite for proposals that may not be selected; `apart` (B, B) tells which two proposals different
    tags may take. The choice is exact: branch and bound over the tags, each from its cheapest proposal on. With many
    tags it may end early, with the best choice found until then. If none is found that keeps all tags apart, every tag
    takes its cheapest proposal.
    """
    order = cost.argsort(dim=1, stable=True).tolist()
    costs, allowed = cost.tolist(), apart.tolist()
    lowest = [row[first[0]] for row, first in zip(costs, order, strict=True)]
    remaining = [sum(lowest[tag:]) for tag in range(len(costs) + 1)]  # the least that the tags from here on cost
    best: tuple[float, list[int]] = (float("inf"), [])
    visits = 0

    def visit(tag: int, chosen: list[int], total: float) -> None:
        nonlocal best, visits
        if tag == len(costs):
            best = (total, list(chosen))
            return
        for proposal in order[tag]:
            visits += 1
            if visits > _MAX_VISITS:
                return
            bound = total + costs[tag][proposal] + remaining[tag + 1]
            if bound >= best[0]:  # later proposals cost more
                return
            if all(allowed[proposal][other] for other in chosen):
                visit(tag + 1, [*chosen, proposal], total + costs[tag][proposal])

    visit(0, [], 0.0)
    return torch.tensor(best[1] or [first[0] for first in order])
