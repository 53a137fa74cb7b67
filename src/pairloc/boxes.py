"""IoU and box arithmetic.

A box is (x1, y1, x2, y2) in pixels, measured from the upper left corner of the upright picture, x2 and y2
exclusive: a box of the whole picture is (0, 0, width, height). Every format's own convention ends at its reader.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def area(boxes: Floats) -> Floats:
    """Area of every box: (..., 4) -> (...)."""
    return np.asarray((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]), dtype=np.float64)


def iou(a: Floats, b: Floats) -> Floats:
    """Intersection over union of every pair: (n, 4), (m, 4) -> (n, m). Two boxes without area have IoU 0."""
    corner_1 = np.maximum(a[:, None, :2], b[None, :, :2])  # (n, m, 2)
    corner_2 = np.minimum(a[:, None, 2:], b[None, :, 2:])  # (n, m, 2)
    shared = (corner_2 - corner_1).clip(min=0).prod(axis=2)  # (n, m)
    union = area(a)[:, None] + area(b)[None, :] - shared
    result: Floats = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return result


def clip(boxes: Floats, sizes: Floats) -> Floats:
    """Boxes cut to their pictures: boxes (n, 4), sizes (n, 2) as width, height -> (n, 4)."""
    return np.clip(boxes, 0.0, np.concatenate([sizes, sizes], axis=1))


def to_xywh(boxes: Floats) -> Floats:
    """(x1, y1, x2, y2) -> (x, y, width, height)."""
    return np.concatenate([boxes[..., :2], boxes[..., 2:] - boxes[..., :2]], axis=-1)
