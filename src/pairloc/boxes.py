"""IoU and box arithmetic, for numpy arrays and torch tensors alike.

A box is (x1, y1, x2, y2) in pixels, measured from the upper left corner of the upright image, x2 and y2
exclusive: a box of the whole image is (0, 0, width, height). Every format's own convention ends at its reader.
"""

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # torch takes seconds to import, and most of what needs boxes does not need it
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

    Two boxes without area have IoU 0.
    """
    low = _maximum(a[..., :, None, :2], b[..., None, :, :2])  # (..., n, m, 2)
    high = _minimum(a[..., :, None, 2:], b[..., None, :, 2:])  # (..., n, m, 2)
    shared: Array = (high - low).clip(min=0).prod(-1)  # (..., n, m)
    union = area(a)[..., :, None] + area(b)[..., None, :] - shared
    either: Array = shared / (union + (union == 0))
    return either


def covered(proposals: Floats, boxes: Floats) -> Floats:
    """The IoU of every box (n, 4) with the best of the proposals (m, 4) -> (n,); 0 where there is none."""
    if not len(proposals) or not len(boxes):
        return np.zeros(len(boxes))
    return np.asarray(iou(boxes, proposals).max(axis=1))


def clip(boxes: Floats, sizes: Floats) -> Floats:
    """Boxes cut to their images: boxes (n, 4), sizes (n, 2) as width, height -> (n, 4)."""
    return np.clip(boxes, 0.0, np.concatenate([sizes, sizes], axis=1))


def to_xywh(boxes: Floats) -> Floats:
    """(x1, y1, x2, y2) -> (x, y, width, height)."""
    return np.concatenate([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], axis=-1)


def _maximum(a: Array, b: Array) -> Array:
    return np.maximum(a, b) if isinstance(a, np.ndarray) else a.maximum(b)


def _minimum(a: Array, b: Array) -> Array:
    return np.minimum(a, b) if isinstance(a, np.ndarray) else a.minimum(b)
