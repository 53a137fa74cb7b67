"""How much of the truth the proposals cover: the ceiling of all that follows."""

import numpy as np

from pairloc.boxes import Floats, Ints, iou


def covered(proposals: Floats, truth: Floats) -> Floats:
    """The IoU of every true box (n, 4) with the best of the proposals (m, 4) -> (n,); 0 where there is none."""
    if not len(proposals) or not len(truth):
        return np.zeros(len(truth))
    return np.asarray(iou(truth, proposals).max(axis=1))


def recall_by_count(
    proposals: list[Floats], image: Ints, label: Ints, boxes: Floats, counts: list[int], thresholds: list[float]
) -> tuple[Floats, Floats]:
    """Recall of the first k proposals of every image, best first.

    `proposals` holds (m, 4) boxes an image; the n true boxes are given by image, label and corners. Gives the share of
    boxes covered, (counts, thresholds), and the same a class, (classes, counts, thresholds), NaN for a class without.
    """
    classes = int(label.max(initial=-1)) + 1
    best = np.zeros((len(counts), len(boxes)))
    for index, mine in enumerate(proposals):
        rows = np.flatnonzero(image == index)
        for place, count in enumerate(counts):
            best[place, rows] = covered(mine[:count], boxes[rows])
    hit = best[:, :, None] >= np.array(thresholds)  # (counts, n, thresholds)
    total = hit.mean(axis=1) if len(boxes) else np.full((len(counts), len(thresholds)), np.nan)
    per_class = np.full((classes, len(counts), len(thresholds)), np.nan)
    for c in np.unique(label).tolist():
        per_class[c] = hit[:, label == c].mean(axis=1)
    return total, per_class
