"""CorLoc: of a class's positive images, the share whose found box overlaps one of its true boxes; mean over classes."""

from dataclasses import dataclass

import numpy as np

from pairloc.boxes import Floats, Ints, iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes

_DRAWS = 1000  # of the bootstrap


@dataclass(frozen=True)
class Localized:
    """Every positive image of every class, n in all: how well its found box overlaps the truth."""

    image: Ints  # (n,)
    label: Ints  # (n,)
    overlap: Floats  # (n,) best IoU with a true box of the class; -1 where no box was found
    score: Floats  # (n,) of the found box; NaN where there is none
    classes: tuple[str, ...]

    def right(self, threshold: float, *, strict: bool = True) -> Floats:
        """1 where the box is right, else 0: (n,). The paper asks for more than the threshold."""
        hits = self.overlap > threshold if strict else self.overlap >= threshold
        return hits.astype(np.float64)


@dataclass(frozen=True)
class CorLoc:
    """CorLoc at one threshold."""

    threshold: float
    mean: float  # over classes
    interval: tuple[float, float]  # 95%, by bootstrap over images
    per_class: dict[str, float]


def localized(dataset: Dataset, found: ScoredBoxes, truth: GroundTruth) -> Localized:
    """Compare found boxes with the truth. The best-scored box of an image and class counts; crowds do not."""
    best: dict[tuple[int, int], int] = {}
    for row in np.argsort(-np.nan_to_num(found.score, nan=-np.inf), kind="stable").tolist():
        best.setdefault((int(found.image[row]), int(found.label[row])), row)
    own: dict[tuple[int, int], list[int]] = {}
    for row in np.flatnonzero(~truth.ignored).tolist():
        own.setdefault((int(truth.image[row]), int(truth.label[row])), []).append(row)
    keys = sorted(own)
    overlap, score = np.full(len(keys), -1.0), np.full(len(keys), np.nan)
    for place, key in enumerate(keys):
        if key in best:
            row = best[key]
            overlap[place] = float(iou(found.boxes[row][None], truth.boxes[own[key]]).max())
            score[place] = found.score[row]
    image, label = (np.array([key[i] for key in keys], dtype=np.int64) for i in (0, 1))
    return Localized(image, label, overlap, score, dataset.classes)


def corloc(found: Localized, threshold: float = 0.5, *, strict: bool = True, draws: int = _DRAWS) -> CorLoc:
    """CorLoc with its interval."""
    right = found.right(threshold, strict=strict)
    shares = class_means(right, found.label, len(found.classes))
    known = ~np.isnan(shares)
    if not known.any():
        return CorLoc(threshold, float("nan"), (float("nan"), float("nan")), {})
    sampled = bootstrap(found, right, draws)
    low, high = np.quantile(sampled, [0.025, 0.975]).tolist()
    per_class = {name: float(shares[c]) for c, name in enumerate(found.classes) if known[c]}
    return CorLoc(threshold, float(shares[known].mean()), (low, high), per_class)


def class_means(values: Floats, label: Ints, classes: int) -> Floats:
    """The mean of values (n,) within each class -> (classes,), NaN where there is none."""
    count = np.bincount(label, minlength=classes)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(label, weights=values, minlength=classes) / count)


def bootstrap(found: Localized, values: Floats, draws: int = _DRAWS, seed: int = 0) -> Floats:
    """The mean over classes of values (n,) on images drawn again and again, with replacement: (draws,).

    Images are drawn within each class, so that a rare class is in every draw.
    """
    random = np.random.default_rng(seed)
    rows = [np.flatnonzero(found.label == c) for c in np.unique(found.label).tolist()]
    means = [values[own][random.integers(0, len(own), (draws, len(own)))].mean(axis=1) for own in rows]
    return np.asarray(np.mean(means, axis=0))


def reliability(
    found: Localized, threshold: float = 0.5, bins: int = 10, *, strict: bool = True
) -> list[dict[str, float]]:
    """Boxes in bins of their score: how many, their mean score, and the share of them that is right.

    Scores that mean what they say have mean score and share alike. Boxes without a score are left out.
    """
    known = ~np.isnan(found.score)
    score, right = found.score[known].clip(0, 1), found.right(threshold, strict=strict)[known]
    place = np.minimum((score * bins).astype(np.int64), bins - 1)
    rows = []
    for mask in (place == b for b in range(bins)):
        if mask.any():
            mean, share = float(score[mask].mean()), float(right[mask].mean())
            rows.append({"count": int(mask.sum()), "score": mean, "right": share})
    return rows
