"""MI-SVM, the baseline the paper calls Uijlings et al.: multiple instance learning with linear support vector machines.

In turn: a machine a class learns its selected proposals against proposals of bags without the tag, the hardest of them
mined again and again; then every held-out bag takes the proposal that looks most like the class and like an object.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from pairloc.localization.target import Selection, Target, fold_of_bags
from pairloc.settings import LearningSettings

_COST = 1.0  # C, shared out evenly between the two sides
_MINED = 2  # passes of hard-negative mining
_NEGATIVES = 512  # bags without the tag that are looked at
_RANDOM = 8  # proposals drawn of each at first


def mi_svm(target: Target, settings: LearningSettings, say: Callable[[str], None] = lambda line: None) -> Selection:
    """A selection by MI-SVM; `lambda2` is the weight of objectness, `rounds` and `folds` are those of the method."""
    objectness = torch.sigmoid(target.own.objectness)
    fold = fold_of_bags(target, settings.folds, settings.seed)
    selection = [_best(objectness[bags.to(objectness.device)], target, bags, settings) for bags in target.positives]
    for number in range(1, settings.rounds + 1):
        changed = 0
        for label, bags in enumerate(target.positives):
            before = selection[label]
            after = before.clone()
            for held in range(settings.folds):
                seen = fold[bags] != held if settings.folds > 1 else torch.ones(len(bags), dtype=torch.bool)
                tested = ~seen if settings.folds > 1 else seen
                if not seen.any() or not tested.any():
                    continue
                seed = settings.seed + 1000 * number + 31 * label + held
                weight, bias = _machine(target, label, bags[seen], before[seen], fold, held, settings, seed)
                scores = torch.sigmoid(target.own.features(bags[tested]) @ weight + bias)
                mixed = (1 - settings.lambda2) * scores + settings.lambda2 * objectness[bags[tested].to(scores.device)]
                after[tested] = _best(mixed, target, bags[tested], settings)
            changed += int((after != before).sum())
            selection[label] = after
        say(f"round {number}: {changed} changed")
        if not changed:
            break
    return tuple(selection)


def _machine(
    target: Target,
    label: int,
    bags: Tensor,
    chosen: Tensor,
    fold: Tensor,
    held: int,
    settings: LearningSettings,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """A machine for a class: its chosen proposals against mined ones of bags without the tag."""
    own, generator = target.own, torch.Generator().manual_seed(seed)
    positive = own.chosen(bags, chosen[:, None])[:, 0]
    allowed = ~target.tagged[:, label] & own.valid.any(dim=1).cpu()
    if settings.folds > 1:
        allowed &= fold != held
    others = torch.nonzero(allowed)[:, 0]
    others = others[torch.randperm(len(others), generator=generator)[:_NEGATIVES]]
    if not len(others):
        return positive.mean(dim=0), positive.new_zeros(())
    keys = torch.rand(len(others), own.size, generator=generator).masked_fill(
        ~own.valid[others.to(own.device)].cpu(), -1
    )
    drawn = keys.topk(min(_RANDOM, own.size), dim=1)
    table = own.features(others)
    negative = table.gather(1, drawn.indices.to(table.device)[..., None].expand(-1, -1, own.d))
    negative = negative[(drawn.values >= 0).to(table.device)]
    weight, bias = fit_svm(positive, negative)
    for _ in range(_MINED):
        scores = (table @ weight + bias).masked_fill(~own.valid[others.to(own.device)], -torch.inf)
        hardest = table[torch.arange(len(others), device=table.device), scores.argmax(dim=1)]
        negative = torch.cat([negative, hardest])
        weight, bias = fit_svm(positive, negative)
    return weight, bias


def fit_svm(positive: Tensor, negative: Tensor, cost: float = _COST) -> tuple[Tensor, Tensor]:
    """Weight (d,) and bias () of the L2-regularised machine with squared hinge loss, both sides of equal weight."""
    features = torch.cat([positive, negative]).double()
    sign = torch.cat([torch.ones(len(positive)), -torch.ones(len(negative))]).to(features)
    share = torch.cat([torch.full((len(part),), 0.5 / len(part)) for part in (positive, negative)]).to(features)
    parameters = torch.zeros(features.shape[1] + 1, dtype=torch.float64, device=features.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        margin = (1 - sign * (features @ parameters[:-1] + parameters[-1])).clamp(min=0)
        loss = 0.5e-2 * parameters[:-1].pow(2).sum() + cost * (share * margin.pow(2)).sum()
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    fitted = parameters.detach().to(positive.dtype)
    return fitted[:-1], fitted[-1]


def _best(scores: Tensor, target: Target, bags: Tensor, settings: LearningSettings) -> Tensor:
    """The proposal of the highest score (M, B) that may be selected in every bag (M,)."""
    return scores.masked_fill(~target.own.selectable(bags, settings.largest), -torch.inf).argmax(dim=1).cpu()
