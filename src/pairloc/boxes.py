"""IoU and box arithmetic, for numpy arrays and torch tensors alike.

A box is (x1, y1, x2, y2) in pixels from the upper left corner of the upright image, x2 and y2 exclusive: the box of
the whole image is (0, 0, width, height). The reader of a format converts its convention to this one.
"""

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # torch takes seconds to import, and most users of this module do not need it
    from torch import Tensor

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Size = tuple[int, int]  # width, height
Array = TypeVar("Array", Floats, "Tensor")


def area(boxes: Array) -> Array:
    """Area of every box: (..., 4) -> (...)."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def iou(a: Array, b: Array) -> Array:
    """Intersection over union of every pair: (..., n, 4), (..., m, 4) -> (..., n, m).

    The IoU of two boxes without area is 0.
    """
    low = _maximum(a[..., :, None, :2], b[..., None, :, :2])  # (..., n, m, 2)
    high = _minimum(a[..., :, None, 2:], b[..., None, :, 2:])  # (..., n, m, 2)
    intersection: Array = (high - low).clip(min=0).prod(-1)  # (..., n, m)
    union = area(a)[..., :, None] + area(b)[..., None, :] - intersection
    ratio: Array = intersection / (union + (union == 0))
    return ratio


def best_iou(proposals: Floats, boxes: Floats) -> Floats:
    """Highest IoU of every box with any proposal: (m, 4), (n, 4) -> (n,); 0 if there are no proposals."""
    if not len(proposals) or not len(boxes):
        return np.zeros(len(boxes))
    return np.asarray(iou(boxes, proposals).max(axis=1))


def clip(boxes: Floats, sizes: Floats) -> Floats:
    """Clip boxes to their images: boxes (n, 4), sizes (n, 2) as (width, height) -> (n, 4)."""
    return np.clip(boxes, 0.0, np.concatenate([sizes, sizes], axis=1))


def to_xywh(boxes: Floats) -> Floats:
    """Convert (x1, y1, x2, y2) to (x, y, width, height): (..., 4) -> (..., 4)."""
    return np.concatenate([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], axis=-1)


def _maximum(a: Array, b: Array) -> Array:
    return np.maximum(a, b) if isinstance(a, np.ndarray) else a.maximum(b)


def _minimum(a: Array, b: Array) -> Array:
    return np.minimum(a, b) if isinstance(a, np.ndarray) else a.minimum(b)
