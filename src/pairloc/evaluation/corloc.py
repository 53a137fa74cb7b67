"""CorLoc: the fraction of a class's positive images whose box overlaps a ground-truth box, averaged over classes."""

from dataclasses import dataclass

import numpy as np

from pairloc.boxes import Floats, Ints, iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes

_DRAWS = 1000  # bootstrap samples


@dataclass(frozen=True)
class Localized:
    """The overlap of the best-scored box with the ground truth, for the n positive images of all classes."""

    image: Ints  # (n,) index of the image
    label: Ints  # (n,) index of the class
    overlap: Floats  # (n,) highest IoU with a ground-truth box of the class; -1 without a box
    score: Floats  # (n,) score of the box; NaN without a box or a score
    classes: tuple[str, ...]

    def right(self, threshold: float, *, strict: bool = True) -> Floats:
        """1 where the box is right, else 0: (n,).

        Its IoU must be above the threshold, as in the paper, or at least the threshold if `strict` is False.
        """
        hits = self.overlap > threshold if strict else self.overlap >= threshold
        return hits.astype(np.float64)


@dataclass(frozen=True)
class CorLoc:
    """CorLoc at one threshold.

    Attributes
    ----------
    threshold : IoU that a box must exceed to count as right
    mean : mean over classes, between 0 and 1
    interval : 95% bootstrap interval of the mean
    per_class : value of every class that has images

    Examples
    --------
    >>> CorLoc(threshold=0.5, mean=0.75, interval=(0.6, 0.9), per_class={"cat": 0.5, "dog": 1.0}).per_class["dog"]
    1.0
    """

    threshold: float  # IoU
    mean: float  # over the classes that have a positive image
    interval: tuple[float, float]  # 95%, by bootstrap over images
    per_class: dict[str, float]


def localized(dataset: Dataset, found: ScoredBoxes, truth: GroundTruth) -> Localized:
    """Match the best-scored box of every image and class with the ground truth; crowd boxes do not count.

    `found` and `truth` must use the image and class indices of `dataset`.
    """
    best_row: dict[tuple[int, int], int] = {}
    for row in np.argsort(-np.nan_to_num(found.score, nan=-np.inf), kind="stable").tolist():
        best_row.setdefault((int(found.image[row]), int(found.label[row])), row)
    truth_rows: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(~truth.ignored).tolist():
        truth_rows.setdefault((int(truth.image[row]), int(truth.label[row])), []).append(row)
    keys = sorted(truth_rows)
    overlap, score = np.full(len(keys), -1.0), np.full(len(keys), np.nan)
    for index, key in enumerate(keys):
        if key in best_row:
            row = best_row[key]
            overlap[index] = float(iou(found.boxes[row][None], truth.boxes[truth_rows[key]]).max())
            score[index] = found.score[row]
    image, label = (np.array([key[i] for key in keys], dtype=np.int64) for i in (0, 1))
    return Localized(image, label, overlap, score, dataset.classes)


def corloc(found: Localized, threshold: float = 0.5, *, strict: bool = True, draws: int = _DRAWS) -> CorLoc:
    """CorLoc with its 95% bootstrap interval from `draws` samples; NaN if no class has a positive image.

    >>> corloc(localized(dataset, found, truth), 0.5).mean
    """
    right = found.right(threshold, strict=strict)
    fractions = class_means(right, found.label, len(found.classes))  # (classes,)
    has_images = ~np.isnan(fractions)
    if not has_images.any():
        return CorLoc(threshold, float("nan"), (float("nan"), float("nan")), {})
    samples = bootstrap(found, right, draws)
    low, high = np.quantile(samples, [0.025, 0.975]).tolist()
    per_class = {name: float(fractions[c]) for c, name in enumerate(found.classes) if has_images[c]}
    return CorLoc(threshold, float(fractions[has_images].mean()), (low, high), per_class)


def class_means(values: Floats, label: Ints, classes: int) -> Floats:
    """Mean of values (n,) within each class -> (classes,), NaN for a class without values."""
    count = np.bincount(label, minlength=classes)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(label, weights=values, minlength=classes) / count)


def bootstrap(found: Localized, values: Floats, draws: int = _DRAWS, seed: int = 0) -> Floats:
    """Bootstrap samples of the mean over classes of values (n,): (draws,).

    Images are resampled within each class, so that a rare class is in every sample.
    """
    random = np.random.default_rng(seed)
    class_rows = [np.flatnonzero(found.label == c) for c in np.unique(found.label).tolist()]
    means = [values[rows][random.integers(0, len(rows), (draws, len(rows)))].mean(axis=1) for rows in class_rows]
    return np.asarray(np.mean(means, axis=0))


def reliability(
    found: Localized, threshold: float = 0.5, bins: int = 10, *, strict: bool = True
) -> list[dict[str, float]]:
    """Reliability diagram: for every bin of scores, the number of boxes, their mean score and the fraction right.

    For calibrated scores, mean score and fraction agree. Boxes without a score and empty bins are left out.
    """
    has_score = ~np.isnan(found.score)
    score, right = found.score[has_score].clip(0, 1), found.right(threshold, strict=strict)[has_score]
    bin_index = np.minimum((score * bins).astype(np.int64), bins - 1)
    rows = []
    for mask in (bin_index == b for b in range(bins)):
        if mask.any():
            mean, fraction = float(score[mask].mean()), float(right[mask].mean())
            rows.append({"count": int(mask.sum()), "score": mean, "right": fraction})
    return rows
