"""The table of methods: CorLoc with intervals, a row a method."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pairloc.data.dataset import Dataset
from pairloc.data.groundtruth import GroundTruth
from pairloc.data.reading import read_boxes
from pairloc.data.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.evaluation.corloc import Localized, corloc, localized


def align(found_in: Dataset, found: ScoredBoxes, dataset: Dataset) -> ScoredBoxes:
    """Found boxes under the image and class indices of the truth's data set.

    Boxes of images the truth does not have are left out; a class it does not have is an error.
    """
    places = dataset.places(found_in)
    classes = {name: index for index, name in enumerate(dataset.classes)}
    used = {found_in.classes[label] for label in np.unique(found.label).tolist()}
    unknown = sorted(used - set(classes))
    if unknown:
        raise InputError(f"the truth has no class {unknown[0]!r}, of which boxes were found")
    image = np.array([-1 if place is None else place for place in places], dtype=np.int64)[found.image]
    label = np.array([classes.get(name, -1) for name in found_in.classes], dtype=np.int64)[found.label]
    kept = image >= 0
    if len(found) and not kept.any():
        raise InputError("the boxes and the truth have no image in common")
    return ScoredBoxes(image[kept], label[kept], found.boxes[kept], found.score[kept])


def compare(file: Path, dataset: Dataset, truth: GroundTruth) -> Localized:
    """The boxes of a file against the truth."""
    found_in, found = read_boxes(file)
    return localized(dataset, align(found_in, found, dataset), truth)


def evaluate_methods(
    files: Mapping[str, Path], dataset: Dataset, truth: GroundTruth, thresholds: tuple[float, ...] = (0.5, 0.7)
) -> dict[str, Any]:
    """CorLoc of every method's boxes."""
    rows: dict[str, Any] = {}
    for method, file in files.items():
        found = compare(file, dataset, truth)
        rows[method] = {}
        for threshold in thresholds:
            result = corloc(found, threshold)
            rows[method][str(threshold)] = {
                "mean": result.mean, "interval": list(result.interval), "per_class": result.per_class,
            }  # fmt: skip
    return {"methods": rows, "images": len(dataset), "classes": list(dataset.classes)}


def as_text(evaluation: Mapping[str, Any]) -> str:
    """The table for a terminal."""
    methods: Mapping[str, Any] = evaluation["methods"]
    if not methods:
        return "there is no truth to compare with: boxes are in METHOD/boxes.json"
    thresholds = list(next(iter(methods.values())))
    lines = [f"{'':14}" + "".join(f"{'CorLoc@' + t:>24}" for t in thresholds) + f"{'seconds':>10}"]
    for method, row in methods.items():
        cells = ""
        for threshold in thresholds:
            entry = row[threshold]
            low, high = (100 * value for value in entry["interval"])
            cells += f"{100 * entry['mean']:10.1f} [{low:5.1f}, {high:5.1f}]"
        lines.append(f"{method:14}{cells}{evaluation['seconds'].get(method, float('nan')):10.1f}")
    return "\n".join(lines)
