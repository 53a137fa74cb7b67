"""Where a proposal lies and how large it is: numbers beside its features that tell whole objects from parts and groups.

A box head sees a region stretched to one size, so its features hardly know how large the box is, or that it ends where
the image does.
"""

import torch
from torch import Tensor

GEOMETRY = 10
_EDGE = 1 / 128  # of a side: as near a box is at the edge


def geometry(boxes: Tensor, sizes: Tensor, objectness: Tensor) -> Tensor:
    """Boxes (N, B, 4) of images (N, 2) of a width and height, and their objectness (N, B) -> (N, B, GEOMETRY)."""
    limits = sizes.to(boxes).clamp(min=1)[:, None]
    start, end = boxes[..., :2] / limits, boxes[..., 2:] / limits
    sides = (end - start).clamp(min=0)
    edges = torch.cat([start <= _EDGE, end >= 1 - _EDGE], dim=-1).to(boxes)
    area = sides.prod(dim=-1, keepdim=True)
    return torch.cat([sides, area, (sides + 1e-3).log(), edges, objectness[..., None] / 3], dim=-1)
