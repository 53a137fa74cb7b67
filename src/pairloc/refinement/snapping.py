"""Snapping: move a box to the edges of the mask that a segmenter gives for it."""

from typing import Protocol

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.refinement.masks import Masks
from pairloc.settings import SnapSettings


class Segmenter(Protocol):
    """Gives a mask for every box of an image."""

    def __call__(self, image: Tensor, boxes: Tensor) -> Masks:
        """Segment the objects in the boxes (n, 4) of an image (3, H, W) in 0 ... 1."""


def snap(boxes: Tensor, masks: Masks, settings: SnapSettings) -> tuple[Tensor, Tensor]:
    """Return the boxes (n, 4) moved to the edges of their masks, and which ones moved (n,).

    A box stays where its mask says nothing about it: an empty mask, one that reaches every border of the image, or one
    whose box is elsewhere.
    """
    edges = masks.boxes().to(boxes)
    overlap = iou(boxes[:, None], edges[:, None].nan_to_num())[:, 0, 0]
    moves = (overlap >= settings.min_iou) & torch.isfinite(edges).all(dim=1)
    moves &= ~masks.touch_every_border().to(boxes.device)
    return torch.where(moves[:, None], edges, boxes), moves
