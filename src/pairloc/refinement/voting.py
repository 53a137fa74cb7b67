"""Box voting: a box is the mean of the proposals around the selected one, weighted by their scores."""

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.refinement.candidates import Candidates
from pairloc.settings import BoxSettings

_TEMPERATURE = 0.5


def vote(boxes: Tensor, candidates: Candidates, settings: BoxSettings) -> Tensor:
    """The mean of the proposals that overlap each box (M, 4) by `voting_iou`: (M, 4)."""
    if not settings.voting_iou or not len(boxes):
        return boxes
    return mean_box(boxes, candidates.boxes, candidates.scores, settings.voting_iou)


def mean_box(chosen: Tensor, boxes: Tensor, scores: Tensor, least: float) -> Tensor:
    """The mean of the boxes (M, B, 4) that overlap the chosen (M, 4) by `least`, by their scores (M, B): (M, 4).

    A chosen box that none of those that count overlaps stays as it is.
    """
    apart = iou(chosen[:, None], boxes)[:, 0] < least
    scores = scores.masked_fill(apart, -torch.inf)
    weights = torch.softmax(scores / _TEMPERATURE, dim=1)  # (M, B)
    alone = (scores == -torch.inf).all(dim=1)
    return torch.where(alone[:, None], chosen, (weights.nan_to_num()[..., None] * boxes).sum(dim=1))
