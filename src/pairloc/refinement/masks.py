"""The masks that a segmenter gives for the boxes of an image, and the boxes of these masks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pairloc.boxes import Size

_SMALL = 0.1  # parts of a mask below this fraction of its largest part are ignored
_GRID = 256  # maximum side of the grid on which the parts of a mask are told apart


@dataclass(frozen=True)
class Masks:
    """The masks of n boxes of an image. They cover the whole image, at a resolution of their own."""

    masks: Tensor  # (n, h, w) bool
    size: Size  # (width, height) of the image in pixels
    quality: Tensor  # (n,) IoU with the true mask, as the segmenter estimates it
    stability: Tensor  # (n,) IoU of the masks at a higher and a lower threshold

    def boxes(self) -> Tensor:
        """The box around every mask in pixels of the image (n, 4), small loose parts aside; NaN for an empty mask."""
        masks = main_parts(self.masks)
        (width, height), (h, w) = self.size, masks.shape[1:]
        x1, x2 = _extent(masks.any(dim=1))  # (n,) each
        y1, y2 = _extent(masks.any(dim=2))
        scale = torch.tensor([width / w, height / h] * 2, device=masks.device)
        return torch.stack([x1, y1, x2, y2], dim=1) * scale

    def touch_every_border(self) -> Tensor:
        """Whether each mask reaches all four borders of the image, as those of backgrounds do: (n,)."""
        rows, columns = self.masks.any(dim=2), self.masks.any(dim=1)
        return rows[:, 0] & rows[:, -1] & columns[:, 0] & columns[:, -1]


def _extent(covered: Tensor) -> tuple[Tensor, Tensor]:
    """First covered cell and the cell after the last one, of (n, cells): (n,), (n,); NaN if none is covered."""
    cells = covered.shape[1]
    first = covered.float().argmax(dim=1).float()
    end = cells - covered.flip(1).float().argmax(dim=1).float()
    nothing = ~covered.any(dim=1)
    return first.masked_fill(nothing, torch.nan), end.masked_fill(nothing, torch.nan)


def main_parts(masks: Tensor) -> Tensor:
    """Masks (n, h, w) without their small loose parts: (n, h, w).

    Parts are told apart on a coarse grid, so parts that nearly touch count as one.
    """
    n, h, w = masks.shape
    if not masks.any():
        return masks
    step = -(-max(h, w) // _GRID)
    coarse = F.max_pool2d(masks.float(), step, ceil_mode=True) > 0  # (n, h', w')
    label = connected(coarse).flatten(1)
    covered = F.avg_pool2d(masks.float(), step, ceil_mode=True).flatten(1)  # fraction of every cell
    size = covered.new_zeros(n, label.shape[1] + 1).scatter_add_(1, label, covered)  # of every part
    large = size >= _SMALL * size.max(dim=1, keepdim=True).values
    large[:, 0] = False
    kept = large.gather(1, label).view_as(coarse)
    return masks & kept.repeat_interleave(step, dim=1).repeat_interleave(step, dim=2)[:, :h, :w]


def connected(masks: Tensor) -> Tensor:
    """Label the connected parts of masks (n, h, w), diagonals included: (n, h, w), 0 outside, one number per part.

    Every cell takes the highest label around it, then the label of the cell that this label names, until nothing
    changes. So a label crosses a part in few steps, however winding the part is.
    """
    n, h, w = masks.shape
    inside = masks.long()
    labels = torch.arange(1, h * w + 1, device=masks.device).view(1, h, w) * inside
    while True:
        highest = (F.max_pool2d(labels.float(), 3, stride=1, padding=1).long() * inside).view(n, -1)
        named = highest.gather(1, (highest - 1).clamp(min=0))
        after = torch.maximum(highest, named).view(n, h, w) * inside
        if torch.equal(after, labels):
            return labels
        labels = after
