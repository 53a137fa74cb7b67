"""Refinement after selection: a box is the mean of the proposals around the selected one, weighed by their scores."""

import torch
from torch import Tensor

from pairloc.bags.batched import pair_iou
from pairloc.config import LearningSettings
from pairloc.learning.alternate import State
from pairloc.learning.functions import TransferScores
from pairloc.learning.localization import conditional_scores
from pairloc.learning.target import Target

_TEMPERATURE = 0.5


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


def mean_box(chosen: Tensor, boxes: Tensor, scores: Tensor, least: float) -> Tensor:
    """The mean of the boxes (M, B, 4) that overlap the chosen (M, 4) by `least`, by their scores (M, B): (M, 4).

    A chosen box that none of those that count overlaps stays as it is.
    """
    apart = pair_iou(chosen[:, None], boxes)[:, 0] < least
    scores = scores.masked_fill(apart, -torch.inf)
    weights = torch.softmax(scores / _TEMPERATURE, dim=1)  # (M, B)
    alone = (scores == -torch.inf).all(dim=1)
    return torch.where(alone[:, None], chosen, (weights.nan_to_num()[..., None] * boxes).sum(dim=1))
