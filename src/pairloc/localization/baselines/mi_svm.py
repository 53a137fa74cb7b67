"""MI-SVM, the baseline the paper calls Uijlings et al.: multiple instance learning with linear support vector machines.

In turn: a machine a class learns its selected proposals against proposals of bags without the tag, the hardest of them
mined again and again; then every held-out bag takes the proposal that looks most like the class and like an object.
"""

import torch
from torch import Tensor

from pairloc.localization.alternate import Log, State, silent
from pairloc.localization.outcome import Outcome
from pairloc.localization.target import Target, fold_of_bags
from pairloc.settings import BoxSettings, MiSvmSettings

_COST = 1.0  # C, shared out evenly between the two sides
_MINED = 2  # passes of hard-negative mining
_NEGATIVES = 512  # bags without the tag that are looked at
_RANDOM = 8  # proposals drawn of each at first


def mi_svm(target: Target, settings: MiSvmSettings, log: Log = silent) -> Outcome:
    """Selections by MI-SVM; a box's confidence is its score, and boxes are not refined."""
    objectness = torch.sigmoid(target.class_bags.objectness)
    fold = fold_of_bags(target, settings.folds, settings.seed)
    scores = [_masked(objectness[bags.to(objectness.device)], target, bags, settings) for bags in target.positives]
    selection = [_best(entry) for entry in scores]
    for number in range(1, settings.rounds + 1):
        changed = 0
        for label, bags in enumerate(target.positives):
            before = selection[label]
            for held in range(settings.folds):
                seen = fold[bags] != held if settings.folds > 1 else torch.ones(len(bags), dtype=torch.bool)
                tested = ~seen if settings.folds > 1 else seen
                if not seen.any() or not tested.any():
                    continue
                seed = settings.seed + 1000 * number + 31 * label + held
                weight, bias = _machine(target, label, bags[seen], before[seen], fold, held, settings, seed)
                machine = torch.sigmoid(target.class_bags.features(bags[tested]) @ weight + bias)
                known = objectness[bags[tested].to(machine.device)]
                mixed = (1 - settings.objectness_weight) * machine + settings.objectness_weight * known
                scores[label][tested.to(mixed.device)] = _masked(mixed, target, bags[tested], settings)
            selection[label] = _best(scores[label])
            changed += int((selection[label] != before).sum())
        log(f"round {number}: {changed} changed")
        if not changed:
            break
    sure = tuple(entry.amax(dim=1).double().cpu() if len(entry) else torch.zeros(0) for entry in scores)
    gaps = tuple(torch.zeros(len(chosen), dtype=torch.float64) for chosen in selection)
    state = State(tuple(selection), gaps, fold)
    return Outcome(state, tuple(scores), gaps, sure, BoxSettings(voting_iou=0.0))


def _best(scores: Tensor) -> Tensor:
    """The proposal of the highest score (M, B) in every bag: (M,)."""
    return scores.argmax(dim=1).cpu()


def _machine(
    target: Target,
    label: int,
    bags: Tensor,
    chosen: Tensor,
    fold: Tensor,
    held: int,
    settings: MiSvmSettings,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """A machine for a class: its chosen proposals against mined ones of bags without the tag."""
    own, generator = target.class_bags, torch.Generator().manual_seed(seed)
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


def _masked(scores: Tensor, target: Target, bags: Tensor, settings: MiSvmSettings) -> Tensor:
    """Scores (M, B) of bags (M,), minus infinity for proposals that may not be selected."""
    return scores.masked_fill(~target.selectable(bags, settings.max_area), -torch.inf)
