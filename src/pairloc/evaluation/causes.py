"""Causes of localization errors: why each wrong box is wrong."""

import numpy as np

from pairloc.boxes import Floats, iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.evaluation.corloc import Localized, class_means

CAUSES = ("right", "part", "too large", "group", "shifted", "another class", "elsewhere", "no box")
_INSIDE = 0.8  # minimum fraction of a box inside another for it to count as contained
_TOUCHES = 0.1  # minimum IoU for a box to count as being on an object


def causes(
    dataset: Dataset,
    found: ScoredBoxes,
    truth: GroundTruth,
    result: Localized,
    threshold: float,
    *,
    strict: bool = True,
) -> list[str]:
    """The cause, one of `CAUSES`, for every positive image of every class: n names in the order of `result` (n,).

    `result` is `localized(dataset, found, truth)`; `threshold` and `strict` decide which boxes are right.
    """
    best_row: dict[tuple[int, int], int] = {}
    for row in np.argsort(-np.nan_to_num(found.score, nan=-np.inf), kind="stable").tolist():
        best_row.setdefault((int(found.image[row]), int(found.label[row])), row)
    truth_rows: dict[int, list[int]] = {}
    for row in np.flatnonzero(~truth.ignored).tolist():
        truth_rows.setdefault(int(truth.image[row]), []).append(row)
    names = []
    for image, label, right in zip(
        result.image.tolist(), result.label.tolist(), result.right(threshold, strict=strict), strict=True
    ):
        if right:
            names.append("right")
        elif (image, label) not in best_row:
            names.append("no box")
        else:
            rows = truth_rows[image]
            same_class = truth.boxes[[row for row in rows if truth.label[row] == label]]
            other_classes = truth.boxes[[row for row in rows if truth.label[row] != label]]
            names.append(_cause(found.boxes[best_row[image, label]], same_class, other_classes))
    return names


def _cause(box: Floats, same_class: Floats, other_classes: Floats) -> str:
    """Why a box (4,) is wrong, given the image's ground-truth boxes of its class (n, 4) and of other classes (m, 4)."""
    overlap = iou(box[None], same_class)[0]
    intersection = _intersection(box, same_class)
    object_inside = intersection / _area(same_class)  # (n,) fraction of each object inside the box
    box_inside = intersection / _area(box[None])  # (n,) fraction of the box inside each object
    if (object_inside >= _INSIDE).sum() >= 2:
        return "group"
    if len(other_classes) and iou(box[None], other_classes)[0].max() > max(float(overlap.max()), 0.5):
        return "another class"
    best = int(overlap.argmax())
    if overlap[best] < _TOUCHES and not (box_inside >= _INSIDE).any():
        return "elsewhere"
    if (box_inside >= _INSIDE).any():
        return "part"
    return "too large" if object_inside[best] >= _INSIDE else "shifted"


def _intersection(box: Floats, boxes: Floats) -> Floats:
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    return np.asarray((high - low).clip(min=0).prod(axis=1))


def _area(boxes: Floats) -> Floats:
    return np.asarray((boxes[:, 2:] - boxes[:, :2]).prod(axis=1).clip(min=1e-9))


def breakdown(named: list[str], result: Localized) -> dict[str, float]:
    """The fraction of every cause among the names that `causes` returns, mean over classes; they sum to 1."""
    fractions = {}
    for cause in CAUSES:
        values = np.array([name == cause for name in named], dtype=np.float64)
        means = class_means(values, result.label, len(result.classes))
        fractions[cause] = float(np.nanmean(means)) if len(named) else float("nan")
    return fractions
