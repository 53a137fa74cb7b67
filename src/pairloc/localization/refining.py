"""The boxes of a selection, refined."""

from torch import Tensor

from pairloc.localization.alternate import State
from pairloc.localization.functions import TransferScores
from pairloc.localization.problems import conditional_scores
from pairloc.localization.target import Target
from pairloc.refinement.voting import mean_box
from pairloc.settings import LearningSettings


def refined(target: Target, transfer: TransferScores, state: State, settings: LearningSettings) -> tuple[Tensor, ...]:
    """Of every class: the box (M, 4) of each bag; the selected ones themselves where `settings.refine` is 0."""
    found = []
    for label, bags in enumerate(target.positives):
        boxes = target.boxes(state.selection, label)
        if settings.refine and len(bags):
            scores = conditional_scores(target, transfer, state.scores, state.selection, label, settings, state.fold)
            boxes = mean_box(boxes, target.transfer.boxes[bags.to(boxes.device)], scores, settings.refine)
        found.append(boxes)
    return tuple(found)
