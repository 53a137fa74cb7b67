"""Box voting: replace a box by the mean of the proposals that overlap it, weighted by their scores."""

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.refinement.candidates import Candidates
from pairloc.settings import BoxSettings

_TEMPERATURE = 0.5  # softmax that turns scores into weights


def vote(boxes: Tensor, candidates: Candidates, settings: BoxSettings) -> Tensor:
    """Average the proposals whose IoU with a box (M, 4) is at least `voting_iou`: (M, 4)."""
    if not settings.voting_iou or not len(boxes):
        return boxes
    return mean_box(boxes, candidates.boxes, candidates.scores, settings.voting_iou)


def mean_box(chosen: Tensor, boxes: Tensor, scores: Tensor, min_iou: float) -> Tensor:
    """Mean of the boxes (M, B, 4) whose IoU with the chosen ones (M, 4) is at least `min_iou`: (M, 4).

    The weights are a softmax of the scores (M, B). A chosen box without an overlapping box of finite score is returned
    unchanged.
    """
    too_far = iou(chosen[:, None], boxes)[:, 0] < min_iou
    scores = scores.masked_fill(too_far, -torch.inf)
    weights = torch.softmax(scores / _TEMPERATURE, dim=1)  # (M, B)
    unsupported = (scores == -torch.inf).all(dim=1)
    return torch.where(unsupported[:, None], chosen, (weights.nan_to_num()[..., None] * boxes).sum(dim=1))
