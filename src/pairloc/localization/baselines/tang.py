"""Tang et al. (2016): as LSDA, but source classes count by their visual and semantic similarity to the new class.

Visual similarity is the mean probability that the source's image classifiers give to the images of a new class;
semantic similarity compares names (`semantic.py`). The original's transfer of box regression is left out: boxes are
proposals.
"""

import torch

from pairloc.localization.alternate import Log, silent
from pairloc.localization.baselines.half_steps import HalfSteps
from pairloc.localization.baselines.lsda import adapted, selected_by, target_classifiers
from pairloc.localization.baselines.semantic import semantic_similarity
from pairloc.localization.baselines.source_classifiers import SourceClassifiers, whole_images
from pairloc.localization.outcome import Outcome
from pairloc.localization.target import Target
from pairloc.settings import TangSettings


def tang(target: Target, classifiers: SourceClassifiers, settings: TangSettings, log: Log = silent) -> Outcome:
    """Select the highest score of the adapted detectors; the confidence of a box is its probability."""
    steps = HalfSteps()
    with steps.retraining(0):
        similarity = settings.visual * visual_similarity(target, classifiers)
        if settings.visual < 1:
            semantic, how = semantic_similarity(target.classes, classifiers.classes, settings.semantic_table)
            log(f"similarity of class names: {how}")
            similarity = similarity + (1 - settings.visual) * _normalised(semantic.to(similarity))
        count = min(settings.neighbours, len(classifiers.classes))
        best = similarity.topk(count, dim=1)
        weights = _normalised(torch.zeros_like(similarity).scatter_(1, best.indices, best.values))
        detectors = adapted(target_classifiers(target), classifiers, weights)
    return selected_by(target, detectors, steps)


def visual_similarity(target: Target, classifiers: SourceClassifiers) -> torch.Tensor:
    """Mean probability (C, S) of the source classes in the images of each target class."""
    rows, bags = [], target.bags
    for positives in target.positives:
        if len(positives):
            scores = whole_images(bags, positives) @ classifiers.image[:, :-1].T + classifiers.image[:, -1]  # (M, S)
            rows.append(torch.softmax(scores, dim=1).mean(dim=0))
        else:
            rows.append(torch.full((len(classifiers.classes),), 1 / len(classifiers.classes), device=bags.device))
    return torch.stack(rows)


def _normalised(weights: torch.Tensor) -> torch.Tensor:
    """Scale rows of nonnegative weights (C, S) to a sum of 1; a row of zeros becomes uniform."""
    total = weights.sum(dim=1, keepdim=True)
    return torch.where(total > 0, weights / total.clamp(min=1e-12), 1 / weights.shape[1])
