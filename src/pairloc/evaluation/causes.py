"""Where CorLoc is lost: every wrong box by its cause."""

import numpy as np

from pairloc.boxes import Floats, iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.evaluation.corloc import Localized, class_means

CAUSES = ("right", "part", "too large", "group", "shifted", "another class", "elsewhere", "no box")
_INSIDE = 0.8  # share of a box that lies in another: it is a part of it
_TOUCHES = 0.1  # IoU from which a box is about an object at all


def causes(
    dataset: Dataset,
    found: ScoredBoxes,
    truth: GroundTruth,
    result: Localized,
    threshold: float,
    *,
    strict: bool = True,
) -> list[str]:
    """The cause of every positive image of every class, in the order of `result` (n,)."""
    chosen: dict[tuple[int, int], int] = {}
    for row in np.argsort(-np.nan_to_num(found.score, nan=-np.inf), kind="stable").tolist():
        chosen.setdefault((int(found.image[row]), int(found.label[row])), row)
    of_image: dict[int, list[int]] = {}
    for row in np.flatnonzero(~truth.ignored).tolist():
        of_image.setdefault(int(truth.image[row]), []).append(row)
    named = []
    for image, label, right in zip(
        result.image.tolist(), result.label.tolist(), result.right(threshold, strict=strict), strict=True
    ):
        if right:
            named.append("right")
        elif (image, label) not in chosen:
            named.append("no box")
        else:
            rows = of_image[image]
            own = truth.boxes[[row for row in rows if truth.label[row] == label]]
            others = truth.boxes[[row for row in rows if truth.label[row] != label]]
            named.append(_cause(found.boxes[chosen[image, label]], own, others))
    return named


def _cause(box: Floats, own: Floats, others: Floats) -> str:
    """Why a box is wrong, given the true boxes of its class and of others in the image."""
    overlap = iou(box[None], own)[0]
    shared = _shared(box, own)
    inside = shared / _area(own)  # of each object, the share the box covers
    covered = shared / _area(box[None])  # of the box, the share in each object
    if (inside >= _INSIDE).sum() >= 2:
        return "group"
    if len(others) and iou(box[None], others)[0].max() > max(float(overlap.max()), 0.5):
        return "another class"
    best = int(overlap.argmax())
    if overlap[best] < _TOUCHES and not (covered >= _INSIDE).any():
        return "elsewhere"
    if (covered >= _INSIDE).any():
        return "part"
    return "too large" if inside[best] >= _INSIDE else "shifted"


def _shared(box: Floats, boxes: Floats) -> Floats:
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    return np.asarray((high - low).clip(min=0).prod(axis=1))


def _area(boxes: Floats) -> Floats:
    return np.asarray((boxes[:, 2:] - boxes[:, :2]).prod(axis=1).clip(min=1e-9))


def breakdown(named: list[str], result: Localized) -> dict[str, float]:
    """The share of every cause, mean over classes; the shares add up to 1."""
    shares = {}
    for cause in CAUSES:
        values = np.array([name == cause for name in named], dtype=np.float64)
        means = class_means(values, result.label, len(result.classes))
        shares[cause] = float(np.nanmean(means)) if len(named) else float("nan")
    return shares
