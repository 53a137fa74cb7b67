"""Geometric features of proposals, appended to the others: they help to tell whole objects from parts and groups.

A box head sees every region stretched to one size, so its features hardly depend on the size of the box or on whether
it touches the border of the image.
"""

import torch
from torch import Tensor

GEOMETRY = 10  # number of features
_BORDER = 1 / 128  # a box this close to the border, relative to the image's side, touches it


def geometry(boxes: Tensor, sizes: Tensor, objectness: Tensor) -> Tensor:
    """Boxes (N, B, 4), image sizes (N, 2) as width and height, objectness (N, B) -> features (N, B, GEOMETRY).

    They are relative width, height and area, the logarithms of width and height, one flag for each border that the box
    touches (left, top, right, bottom), and objectness.
    """
    limits = sizes.to(boxes).clamp(min=1)[:, None]
    start, end = boxes[..., :2] / limits, boxes[..., 2:] / limits
    sides = (end - start).clamp(min=0)
    borders = torch.cat([start <= _BORDER, end >= 1 - _BORDER], dim=-1).to(boxes)
    area = sides.prod(dim=-1, keepdim=True)
    return torch.cat([sides, area, (sides + 1e-3).log(), borders, objectness[..., None] / 3], dim=-1)
