"""Recall of a store's proposals: an upper limit for localization, which can only select among them."""

from typing import Any

import numpy as np

from pairloc.bags.store import BagStore
from pairloc.boxes import Floats, Ints, best_iou
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
    """Recall of the first `counts` proposals of every image: of all boxes, mean over classes, and of each class.

    `images` of the result is, by threshold, the highest CorLoc that a selection among the proposals can reach. Raises
    InputError if an image of the ground truth has no bag.
    """
    store_indices = store.dataset.indices_of(dataset)
    missing = [
        image.file for image, store_index in zip(dataset.images, store_indices, strict=True) if store_index is None
    ]
    if missing:
        raise InputError(
            f"{store.path}: has no bag for {missing[0]} of the ground truth ({len(missing)} images are missing); "
            "extract bags of all its images"
        )
    rows = np.flatnonzero(~truth.ignored)
    image = np.array([store_indices[i] for i in truth.image[rows].tolist()], dtype=np.int64)
    needed = set(image.tolist())
    empty = np.zeros((0, 4))
    proposals = [store.bag(i).boxes.astype(np.float64) if i in needed else empty for i in range(len(store))]
    label = truth.label[rows]
    total, per_class = recall_by_count(proposals, image, label, truth.boxes[rows], list(counts), list(thresholds))
    table = [{"name": "all boxes", "boxes": len(rows), "values": total.ravel().tolist()}]
    by_image = _image_recall(proposals, image, label, truth.boxes[rows], list(thresholds), len(dataset.classes))
    with_boxes = [c for c in range(len(per_class)) if not np.isnan(per_class[c]).any()]
    mean = np.nanmean(per_class[with_boxes], axis=0).ravel().tolist() if with_boxes else []
    table.append({"name": "mean over classes", "boxes": len(rows), "values": mean})
    for c in with_boxes:
        table.append(
            {"name": dataset.classes[c], "boxes": int((label == c).sum()), "values": per_class[c].ravel().tolist()}
        )
    return {"columns": [f"{k} @{t}" for k in counts for t in thresholds], "rows": table, "images": by_image}


def _image_recall(
    proposals: list[Floats], image: Ints, label: Ints, boxes: Floats, thresholds: list[float], classes: int
) -> dict[str, float]:
    """Fraction of a class's images with a covered box, mean over classes, by threshold: the upper limit of CorLoc."""
    best: dict[tuple[int, int], float] = {}
    for i, c, box in zip(image.tolist(), label.tolist(), boxes, strict=True):
        overlap = float(best_iou(proposals[i], box[None])[0])
        best[i, c] = max(best.get((i, c), 0.0), overlap)
    means = {}
    for threshold in thresholds:
        hits = [[b > threshold for (_, k), b in best.items() if k == c] for c in range(classes)]
        means[f"@{threshold}"] = float(np.mean([np.mean(hit) for hit in hits if hit])) if best else float("nan")
    return means


def recall_by_count(
    proposals: list[Floats], image: Ints, label: Ints, boxes: Floats, counts: list[int], thresholds: list[float]
) -> tuple[Floats, Floats]:
    """Recall of the first proposals of every image, for several numbers of proposals and IoU thresholds.

    `proposals` has one array (m, 4) per image, best first; `image` (n,), `label` (n,) and `boxes` (n, 4) are the ground
    truth. Returns the recall of all boxes, (counts, thresholds), and of every class, (classes, counts, thresholds),
    NaN for a class without boxes.
    """
    classes = int(label.max(initial=-1)) + 1
    best = np.zeros((len(counts), len(boxes)))
    for index, image_proposals in enumerate(proposals):
        rows = np.flatnonzero(image == index)
        for k, count in enumerate(counts):
            best[k, rows] = best_iou(image_proposals[:count], boxes[rows])
    hit = best[:, :, None] >= np.array(thresholds)  # (counts, n, thresholds)
    total = hit.mean(axis=1) if len(boxes) else np.full((len(counts), len(thresholds)), np.nan)
    per_class = np.full((classes, len(counts), len(thresholds)), np.nan)
    for c in np.unique(label).tolist():
        per_class[c] = hit[:, label == c].mean(axis=1)
    return total, per_class
