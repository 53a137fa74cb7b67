"""COCO results: a list of detections with scores; image and category ids refer to a given data set."""

from pathlib import Path

import numpy as np

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError, shown
from pairloc.io import read_json


def read_results(path: Path, dataset: Dataset, *, classes: bool = True) -> ScoredBoxes:
    """Read the boxes in the order of the file; `classes=False` ignores the categories and makes every label 0.

    Raises an InputError for an entry that is malformed or not of the data set.
    """
    entries = read_json(path)
    if not isinstance(entries, list):
        raise InputError(f"{path}: is not a COCO results file: it is not a list of boxes")
    images: dict[object, int] = {image.id: index for index, image in enumerate(dataset.images)}
    labels: dict[object, int] = {id: index for index, id in enumerate(dataset.class_ids)}
    rows = [
        _row(entry, f"{path}: [{index}]", images, labels if classes else None) for index, entry in enumerate(entries)
    ]
    table = np.array(rows, dtype=np.float64).reshape(-1, 7)
    return ScoredBoxes(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2:6], table[:, 6])


def _row(entry: object, place: str, images: dict[object, int], labels: dict[object, int] | None) -> tuple[float, ...]:
    """Convert a result to (image, label, x1, y1, x2, y2, score)."""
    if not isinstance(entry, dict):
        raise InputError(f"{place}: is {shown(entry)}, not an object")
    image, category, box, score = (entry.get(key) for key in ("image_id", "category_id", "bbox", "score"))
    if not isinstance(image, int | str) or image not in images:
        raise InputError(f"{place}: image_id is {shown(image)}, which is not in the data set")
    if labels is not None and (not isinstance(category, int) or category not in labels):
        raise InputError(f"{place}: category_id is {shown(category)}, which is not in the data set")
    numbers = [*box, score] if isinstance(box, list) and len(box) == 4 else []
    if len(numbers) != 5 or not all(isinstance(n, int | float) and np.isfinite(n) for n in numbers):
        raise InputError(f"{place}: bbox is {shown(box)} and score {shown(score)}; five finite numbers are needed")
    x, y, width, height, confidence = (float(n) for n in numbers)
    if width <= 0 or height <= 0:
        raise InputError(f"{place}: bbox is {shown(box)}, which has no area")
    return images[image], 0 if labels is None else labels[category], x, y, x + width, y + height, confidence
