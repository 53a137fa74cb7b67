"""LSDA (Hoffman et al., 2014): image classifiers of new classes become detectors.

A source class has two classifiers, of images and of boxes. The mean of their differences over the source classes
nearest to a new one is added to its classifier of images. The original fine-tunes a network for each; here both are
linear on the features of the proposer, which was trained for detection on the source.
"""

import torch
from torch import Tensor

from pairloc.localization.baselines.half_steps import HalfSteps
from pairloc.localization.baselines.source_classifiers import SourceClassifiers, image_classifiers
from pairloc.localization.outcome import Outcome, highest_scored
from pairloc.localization.target import Target
from pairloc.settings import LsdaSettings


def lsda(target: Target, classifiers: SourceClassifiers, settings: LsdaSettings) -> Outcome:
    """Select the highest score of the adapted detectors; the confidence of a box is its probability."""
    steps = HalfSteps()
    with steps.retraining(0):
        image = target_classifiers(target)
        distance = torch.cdist(image[:, :-1], classifiers.image[:, :-1])  # (C, S)
        count = min(settings.neighbours, len(classifiers.classes))
        nearest = torch.zeros_like(distance).scatter_(1, distance.topk(count, dim=1, largest=False).indices, 1 / count)
        detectors = adapted(image, classifiers, nearest)
    return selected_by(target, detectors, steps)


def target_classifiers(target: Target) -> Tensor:
    """Classifiers of images (C, d + 1) of the target classes, learned from tags."""
    used = torch.nonzero(target.bags.valid.any(dim=1))[:, 0].cpu()
    return image_classifiers(target.bags, target.tagged, used)


def adapted(image: Tensor, classifiers: SourceClassifiers, weights: Tensor) -> Tensor:
    """Add the weighted changes (box minus image) of the source classes, weights (C, S), to classifiers (C, d + 1)."""
    return image + weights @ (classifiers.box - classifiers.image)


def selected_by(target: Target, detectors: Tensor, steps: HalfSteps) -> Outcome:
    """Select the proposal with the highest probability of detectors (C, d + 1); `steps` has the time of training."""
    scores, fold = [], torch.zeros(target.bags.count, dtype=torch.int64)
    with steps.relocalization(0):
        for bags, weights in zip(target.positives, detectors, strict=True):
            valid = target.bags.valid[bags.to(target.bags.device)]
            logits = target.bags.features(bags) @ weights[:-1] + weights[-1]
            scores.append(logits.masked_fill(~valid, -torch.inf))
        outcome = highest_scored(tuple(scores), fold, logits=True)
    steps.count(0, sum(map(len, scores)))
    return outcome.with_history(steps.history())
