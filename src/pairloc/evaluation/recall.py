"""Recall of a store's proposals on the truth: the ceiling of all that follows."""

from typing import Any

import numpy as np

from pairloc.bags.store import BagStore
from pairloc.boxes import Floats, Ints, covered
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError


def recall_of_store(
    store: BagStore,
    dataset: Dataset,
    truth: GroundTruth,
    counts: tuple[int, ...] = (10, 30, 100),
    thresholds: tuple[float, ...] = (0.5, 0.7),
) -> dict[str, Any]:
    """Recall of a store's proposals on the truth of its images, as a table: all boxes, mean over classes, each class.

    Also the share of images whose class is covered: of a class's images, those with one of its boxes covered.
    """
    places = store.dataset.places(dataset)
    missing = [image.file for image, place in zip(dataset.images, places, strict=True) if place is None]
    if missing:
        raise InputError(f"{store.path}: has no bag of {missing[0]} of the truth ({len(missing)} are missing)")
    rows = np.flatnonzero(~truth.ignored)
    image = np.array([places[i] for i in truth.image[rows].tolist()], dtype=np.int64)
    needed = set(image.tolist())
    empty = np.zeros((0, 4))
    proposals = [store.bag(i).boxes.astype(np.float64) if i in needed else empty for i in range(len(store))]
    label = truth.label[rows]
    total, per_class = recall_by_count(proposals, image, label, truth.boxes[rows], list(counts), list(thresholds))
    table = [{"name": "all boxes", "boxes": len(rows), "values": total.ravel().tolist()}]
    by_image = _image_recall(proposals, image, label, truth.boxes[rows], list(thresholds), len(dataset.classes))
    known = [c for c in range(len(per_class)) if not np.isnan(per_class[c]).any()]
    mean = np.nanmean(per_class[known], axis=0).ravel().tolist() if known else []
    table.append({"name": "mean over classes", "boxes": len(rows), "values": mean})
    for c in known:
        table.append(
            {"name": dataset.classes[c], "boxes": int((label == c).sum()), "values": per_class[c].ravel().tolist()}
        )
    return {"columns": [f"{k} @{t}" for k in counts for t in thresholds], "rows": table, "images": by_image}


def _image_recall(
    proposals: list[Floats], image: Ints, label: Ints, boxes: Floats, thresholds: list[float], classes: int
) -> dict[str, float]:
    """The share of an image's classes with a covered box, mean over classes: the ceiling of CorLoc."""
    best: dict[tuple[int, int], float] = {}
    for i, c, box in zip(image.tolist(), label.tolist(), boxes, strict=True):
        overlap = float(covered(proposals[i], box[None])[0])
        best[i, c] = max(best.get((i, c), 0.0), overlap)
    means = {}
    for threshold in thresholds:
        shares = [[b > threshold for (_, k), b in best.items() if k == c] for c in range(classes)]
        means[f"@{threshold}"] = float(np.mean([np.mean(share) for share in shares if share])) if best else float("nan")
    return means


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
