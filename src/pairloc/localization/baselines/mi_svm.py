"""MI-SVM, the baseline the paper calls Uijlings et al.: multiple instance learning with linear support vector machines.

The first selection is the proposal nearest to the whole image. Then two steps alternate. For every class, an SVM is
trained on its selected proposals against proposals of bags without the tag, with hard-negative mining. Then the
proposal with the highest weighted mean of class probability and objectness is selected in every held-out bag.
"""

import torch
from torch import Tensor

from pairloc.localization.alternate import Log, silent
from pairloc.localization.baselines.half_steps import HalfSteps
from pairloc.localization.outcome import Outcome, best_proposals, highest_scored
from pairloc.localization.target import Target, fold_of_bags
from pairloc.settings import MiSvmSettings

_COST = 1.0  # C; positives and negatives each get half of it
_DECAY = 1e-2
_NEWTON_STEPS = 20
_MINING_PASSES = 2
_NEGATIVE_BAGS = 512  # maximum number of bags without the tag
_RANDOM = 8  # random proposals per negative bag before mining


def mi_svm(target: Target, settings: MiSvmSettings, log: Log = silent) -> Outcome:
    """Select by MI-SVM; the confidence of a box is its score, and boxes are not refined."""
    objectness = torch.sigmoid(target.class_bags.objectness)
    fold = fold_of_bags(target, settings.folds, settings.seed)
    steps = HalfSteps()
    with steps.relocalization(0):
        scores = [target.bags.frame_overlap(bags) for bags in target.positives]
        selection = [best_proposals(class_scores) for class_scores in scores]
    steps.count(0, sum(map(len, selection)))
    converged = False
    for number in range(1, settings.rounds + 1):
        for label, bags in enumerate(target.positives):
            before = selection[label]
            for held_out in range(settings.folds):
                trained = fold[bags] != held_out if settings.folds > 1 else torch.ones(len(bags), dtype=torch.bool)
                tested = ~trained if settings.folds > 1 else trained
                if not trained.any() or not tested.any():
                    continue
                seed = settings.seed + 1000 * number + 31 * label + held_out
                usable = fold != held_out if settings.folds > 1 else None
                with steps.retraining(number):
                    weight, bias = train_svm(target, label, bags[trained], before[trained], usable=usable, seed=seed)
                with steps.relocalization(number):
                    probability = torch.sigmoid(target.class_bags.features(bags[tested]) @ weight + bias)
                    object_score = objectness[bags[tested].to(probability.device)]
                    mixed = (1 - settings.objectness_weight) * probability + settings.objectness_weight * object_score
                    valid = target.class_bags.valid[bags[tested].to(mixed.device)]
                    scores[label][tested.to(mixed.device)] = mixed.masked_fill(~valid, -torch.inf)
            with steps.relocalization(number):
                selection[label] = best_proposals(scores[label])
            steps.count(number, int((selection[label] != before).sum()))
        log(f"round {number}: {steps.changed(number)} boxes changed")
        converged = not steps.changed(number)
        if converged:
            break
    return highest_scored(tuple(scores), fold).with_history(steps.history(), converged=converged)


def train_svm(
    target: Target, label: int, bags: Tensor, chosen: Tensor, *, usable: Tensor | None = None, seed: int
) -> tuple[Tensor, Tensor]:
    """Train the SVM of a class: proposals `chosen` (n,) of bags (n,) against mined proposals of bags without the tag.

    `usable` (N,) is a mask of the bags that negatives may come from; by default all. Returns weight (d,) and bias ().
    """
    class_bags, generator = target.class_bags, torch.Generator().manual_seed(seed)
    positive = class_bags.chosen(bags, chosen[:, None])[:, 0]
    allowed = ~target.tagged[:, label] & class_bags.valid.any(dim=1).cpu()
    if usable is not None:
        allowed &= usable
    others = torch.nonzero(allowed)[:, 0]
    others = others[torch.randperm(len(others), generator=generator)[:_NEGATIVE_BAGS]]
    if not len(others):
        return positive.mean(dim=0), positive.new_zeros(())
    keys = torch.rand(len(others), class_bags.size, generator=generator).masked_fill(
        ~class_bags.valid[others.to(class_bags.device)].cpu(), -1
    )
    drawn = keys.topk(min(_RANDOM, class_bags.size), dim=1)
    features = class_bags.features(others)
    negative = features.gather(1, drawn.indices.to(features.device)[..., None].expand(-1, -1, class_bags.d))
    negative = negative[(drawn.values >= 0).to(features.device)]
    weight, bias = fit_svm(positive, negative)
    for _ in range(_MINING_PASSES):
        scores = (features @ weight + bias).masked_fill(~class_bags.valid[others.to(class_bags.device)], -torch.inf)
        hardest = features[torch.arange(len(others), device=features.device), scores.argmax(dim=1)]
        negative = torch.cat([negative, hardest])
        weight, bias = fit_svm(positive, negative)
    return weight, bias


def fit_svm(positive: Tensor, negative: Tensor, cost: float = _COST) -> tuple[Tensor, Tensor]:
    """Fit a linear SVM with L2 regularisation and squared hinge loss; return its weight (d,) and bias ().

    Positives (p, d) and negatives (n, d) have the same total weight. Newton's method: given which examples violate the
    margin, the optimum is a linear system; it is repeated until these examples stay the same.
    """
    ones = torch.ones(len(positive) + len(negative), 1)
    features = torch.cat(
        [torch.cat([positive, negative]).double(), ones.to(positive.device).double()], dim=1
    )  # bias last
    sign = torch.cat([torch.ones(len(positive)), -torch.ones(len(negative))]).to(features)
    sample_weight = torch.cat([torch.full((len(part),), 0.5 / len(part)) for part in (positive, negative)]).to(features)
    decay = torch.full((features.shape[1],), _DECAY).to(features)
    decay[-1] = 1e-9  # the bias is not regularised
    parameters = torch.zeros(features.shape[1]).to(features)

    def objective(values: Tensor) -> Tensor:
        margin = (1 - sign * (features @ values)).clamp(min=0)
        return 0.5 * (decay * values.pow(2)).sum() + cost * (sample_weight * margin.pow(2)).sum()

    for _ in range(_NEWTON_STEPS):
        active = torch.nonzero(sign * (features @ parameters) < 1)[:, 0]  # the a examples that violate the margin
        violating = features[active]
        weighted = 2 * cost * sample_weight[active, None] * violating  # (a, d + 1)
        hessian = torch.diag(decay) + weighted.T @ violating
        optimum = torch.linalg.solve(hessian, weighted.T @ sign[active])
        direction, step = optimum - parameters, 1.0
        before = objective(parameters)
        while step > 1e-4 and objective(parameters + step * direction) > before:
            step /= 2
        parameters = parameters + step * direction
        if float(direction.abs().max()) < 1e-8:
            break
    fitted = parameters.to(positive.dtype)
    return fitted[:-1], fitted[-1]
