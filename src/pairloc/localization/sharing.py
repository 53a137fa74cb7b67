"""Shared boxes: where two tags of an image claim one box, at most one of them is right about it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pairloc.boxes import iou

SHARED_IOU = 0.7  # two boxes with a higher IoU are one box
_MAX = 1 - 1e-9  # limit of a probability, so that its odds are finite


@dataclass(frozen=True)
class Sharing:
    """How many images have two tags that share a box, of how many with several tags."""

    images: int = 0
    several: int = 0

    @property
    def message(self) -> str | None:
        """One sentence that says so; None if no image has such tags."""
        if not self.images:
            return None
        images = "image" if self.several == 1 else "images"
        return (
            f"in {self.images} of {self.several} {images} with several tags two tags share a box; "
            "their confidence is lowered"
        )


def share_confidence(
    positives: tuple[Tensor, ...], boxes: tuple[Tensor, ...], confidence: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], Sharing]:
    """Lower the confidence of tags of one image whose boxes overlap by more than 0.7, and count such images.

    Parameters hold, for every class, its bags (M,), their boxes (M, 4) and the confidence in them (M,).
    """
    several = list(tags_of_images(positives).values())
    corners, lowered = tuple(table.cpu() for table in boxes), tuple(values.clone() for values in confidence)
    images = 0
    for tags in several:
        of_image = torch.stack([corners[label][row] for label, row in tags])  # (T, 4)
        shared = (iou(of_image, of_image) > SHARED_IOU).fill_diagonal_(False)  # (T, T)
        if shared.any():
            images += 1
            probability = torch.stack([confidence[label][row] for label, row in tags])
            for (label, row), value in zip(tags, at_most_one(probability, shared), strict=True):
                lowered[label][row] = value
    return lowered, Sharing(images, len(several))


def tags_of_images(positives: tuple[Tensor, ...]) -> dict[int, list[tuple[int, int]]]:
    """The tags of every image with several, as (class, row among its bags), by bag; `positives` are bags by class."""
    tags: dict[int, list[tuple[int, int]]] = {}
    for label, bags in enumerate(positives):
        for row, bag in enumerate(bags.tolist()):
            tags.setdefault(bag, []).append((label, row))
    return {bag: entries for bag, entries in tags.items() if len(entries) > 1}


def at_most_one(probability: Tensor, shared: Tensor) -> Tensor:
    """Return probabilities (T,), given that of those which `shared` (T, T) pairs at most one is right.

    Two become p (1 - q) / (1 - p q) and q (1 - p) / (1 - p q); one without a partner stays as it is.
    """
    likely = probability.double().clamp(max=_MAX)
    odds = likely / (1 - likely)
    together = odds / (1 + odds + shared.double() @ odds)
    return torch.where(shared.any(dim=1), together.to(probability.dtype), probability)
