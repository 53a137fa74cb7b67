"""Evaluation of boxes from files: the table of a run's methods, and the details of one file."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from pairloc.boxes import Bools
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.evaluation.causes import CAUSES, breakdown, causes
from pairloc.evaluation.compare import difference
from pairloc.evaluation.corloc import Localized, class_means, corloc, localized, reliability
from pairloc.formats.coco_results import read_results
from pairloc.formats.reading import read_boxes, recognise

SNAPPED = "snapped"  # its segmenter was trained on masks, which no other method uses, so its row stands apart


class Measured(BaseModel):
    """CorLoc of a method at one threshold."""

    model_config = ConfigDict(frozen=True)
    mean: float
    interval: tuple[float, float]
    per_class: dict[str, float]


class Evaluation(BaseModel):
    """The output of a run's stage `evaluation`; `methods` is empty without ground truth."""

    model_config = ConfigDict(frozen=True)
    methods: dict[str, dict[str, Measured]]  # by name, then by IoU threshold
    seconds: dict[str, float]  # by method
    ceiling: dict[str, float] = {}  # CorLoc if the best proposals were selected, by threshold ("@0.5")


def align(found_in: Dataset, found: ScoredBoxes, dataset: Dataset) -> ScoredBoxes:
    """Convert boxes from the image and class indices of `found_in` to those of `dataset`.

    Boxes of images that `dataset` does not have are left out. Raises InputError if `dataset` lacks a class of the
    boxes, or all of their images.
    """
    indices = dataset.indices_of(found_in)
    classes = {name: index for index, name in enumerate(dataset.classes)}
    used = {found_in.classes[label] for label in np.unique(found.label).tolist()}
    unknown = sorted(used - set(classes))
    if unknown:
        raise InputError(f"the ground truth has no class {unknown[0]!r}, but the boxes do; use the same class names")
    image = np.array([-1 if index is None else index for index in indices], dtype=np.int64)[found.image]
    label = np.array([classes.get(name, -1) for name in found_in.classes], dtype=np.int64)[found.label]
    kept = image >= 0
    if len(found) and not kept.any():
        raise InputError("the boxes and the ground truth have no image in common; file names or ids must match")
    return ScoredBoxes(image[kept], label[kept], found.boxes[kept], found.score[kept])


class Found(NamedTuple):
    """The boxes of a file under the indices of a data set."""

    boxes: ScoredBoxes
    left_out: int  # boxes whose image the data set does not have
    listed: Bools  # (N,) the images of the data set that the file is about


def read_found(file: Path, dataset: Dataset) -> Found:
    """Read boxes from any data set with boxes or from COCO results.

    COCO JSON lists the images it is about, with or without a box. Other files list only those with one, so they are
    about all images.
    """
    every = np.ones(len(dataset), dtype=np.bool_)
    if _is_results(file):
        return Found(read_results(file, dataset), 0, every)
    found_in, found = read_boxes(file)
    kept = align(found_in, found, dataset)
    if recognise(file)[1] == "coco":
        every[:] = False
        every[[index for index in dataset.indices_of(found_in) if index is not None]] = True
    return Found(kept, len(found) - len(kept), every)


def _is_results(file: Path) -> bool:
    """Whether a file holds bare COCO results."""
    return file.suffix == ".json" and file.is_file() and file.read_bytes()[:64].lstrip().startswith(b"[")


def compare(file: Path, dataset: Dataset, truth: GroundTruth) -> Localized:
    """Match the boxes of a file with the ground truth."""
    return localized(dataset, read_found(file, dataset).boxes, truth)


def evaluate_methods(
    files: Mapping[str, Path], dataset: Dataset, truth: GroundTruth, thresholds: tuple[float, ...] = (0.5, 0.7)
) -> dict[str, Any]:
    """CorLoc of the boxes of every method, as JSON content; `files` maps methods to files of boxes."""
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


def as_text(evaluation: Evaluation) -> str:
    """Format the table of a run's methods for a terminal."""
    methods = evaluation.methods
    if not methods:
        return "there is no ground truth to compare with; the boxes are in METHOD/boxes.json"
    thresholds = list(next(iter(methods.values())))
    lines = [f"{'':14}" + "".join(f"{'CorLoc@' + t:>24}" for t in thresholds) + f"{'seconds':>10}"]
    lines += [_row(method, evaluation) for method in methods if method != SNAPPED]
    if evaluation.ceiling:
        best = "".join(f"{100 * evaluation.ceiling['@' + threshold]:10.1f}{'':16}" for threshold in thresholds)
        lines.append(f"{'best proposal':14}{best.rstrip()}")
    if SNAPPED in methods:
        lines += ["with a segmenter that was trained on masks:", _row(SNAPPED, evaluation)]
    return "\n".join(lines)


def _row(method: str, evaluation: Evaluation) -> str:
    cells = ""
    for entry in evaluation.methods[method].values():
        low, high = (100 * value for value in entry.interval)
        cells += f"{100 * entry.mean:10.1f} [{low:5.1f}, {high:5.1f}]"
    return f"{method:14}{cells}{evaluation.seconds.get(method, float('nan')):10.1f}"


def evaluation_of(
    file: Path,
    dataset: Dataset,
    truth: GroundTruth,
    thresholds: tuple[float, ...] = (0.5, 0.7),
    *,
    strict: bool = True,
    against: Path | None = None,
) -> dict[str, Any]:
    """Evaluate the boxes of a file: CorLoc, also per class, causes of errors and reliability, as JSON content.

    Images that the file does not list are left out of the evaluation. `against` is another file of boxes to compare
    with, on the same images. Raises InputError for a threshold outside (0, 1] or if the ground truth has no box that
    counts.
    """
    for threshold in thresholds:
        if not 0 < threshold <= 1:
            raise InputError(f"the IoU threshold {threshold} is not between 0 and 1")
    if truth.ignored.all():
        raise InputError("the ground truth has no box that counts (crowds do not); CorLoc needs one")
    found, left_out, listed = read_found(file, dataset)
    not_listed = sum(1 for tags, is_listed in zip(dataset.tags, listed.tolist(), strict=True) if tags and not is_listed)
    if not_listed and listed.any():
        new_index = np.where(listed, np.cumsum(listed) - 1, -1)
        dataset = dataset.subset(np.flatnonzero(listed).tolist())
        truth = truth.relabelled(new_index, np.arange(len(dataset.classes)))
        found = replace(found, image=new_index[found.image])
    result = localized(dataset, found, truth)
    rows: dict[str, Any] = {}
    for threshold in thresholds:
        measured = corloc(result, threshold, strict=strict)
        rows[str(threshold)] = {
            "mean": measured.mean, "interval": list(measured.interval), "per_class": measured.per_class,
            "causes": breakdown(causes(dataset, found, truth, result, threshold, strict=strict), result),
            "confident_half": _confident_half(result, threshold, strict=strict),
            "reliability": reliability(result, threshold, strict=strict),
        }  # fmt: skip
    content: dict[str, Any] = {
        "images": len(dataset),
        "boxes": len(found),
        "left out": left_out,
        "not listed": not_listed,
        "corloc": rows,
    }
    if against is not None:
        other = compare(against, dataset, truth)
        content["against"] = {str(t): asdict(difference(other, result, t, strict=strict)) for t in thresholds}
    return content


def _confident_half(result: Localized, threshold: float, *, strict: bool) -> float | None:
    """CorLoc of the half of the boxes with the highest scores; None if all scores are equal."""
    scored = np.flatnonzero(~np.isnan(result.score))
    if not len(scored) or np.ptp(result.score[scored]) == 0:
        return None
    best = scored[np.argsort(-result.score[scored], kind="stable")][: max(1, len(scored) // 2)]
    fractions = class_means(result.right(threshold, strict=strict)[best], result.label[best], len(result.classes))
    return float(np.nanmean(fractions))


def evaluation_text(found: Mapping[str, Any]) -> str:
    """Format the result of `evaluation_of` for a terminal."""
    rows: Mapping[str, Any] = found["corloc"]
    lines = [f"{found['boxes']} boxes of {found['images']} images"]
    if found["left out"]:
        lines.append(f"{found['left out']} boxes were left out: the ground truth does not have their images")
    if found["not listed"]:
        lines.append(f"tagged images that this file does not list, and that do not count: {found['not listed']}")
    lines.append(f"{'':24}" + "".join(f"{'@' + t:>24}" for t in rows))
    cells = [_cell(row["mean"], row["interval"]) for row in rows.values()]
    lines.append(f"{'CorLoc, mean of classes':24}" + "".join(cells))
    if any(row["confident_half"] is not None for row in rows.values()):
        lines.append(
            f"{'  most confident half':24}" + "".join(_cell(row["confident_half"], None) for row in rows.values())
        )
    for name in next(iter(rows.values()))["per_class"]:
        lines.append(f"  {name[:22]:22}" + "".join(_cell(row["per_class"][name], None) for row in rows.values()))
    lines.append("causes of errors")
    for cause in CAUSES[1:]:
        lines.append(f"  {cause:22}" + "".join(_cell(row["causes"][cause], None) for row in rows.values()))
    first = next(iter(rows))
    bins = rows[first]["reliability"]
    if len(bins) > 1:
        lines.append(f"reliability @{first}: mean score, fraction right, boxes")
        lines += [f"  {b['score']:.2f}  {100 * b['right']:5.1f}%  {b['count']}" for b in bins]
    for threshold, entry in found.get("against", {}).items():
        low, high = (100 * value for value in entry["interval"])
        gain = f"{100 * entry['mean']:+.1f} [{low:+.1f}, {high:+.1f}] points"
        lines.append(
            f"difference to the other boxes @{threshold}: {gain}, "
            f"better in {100 * entry['better']:.0f}% of the bootstrap samples"
        )
    return "\n".join(lines)


def _cell(value: float | None, interval: list[float] | None) -> str:
    if value is None:
        return f"{'':24}"
    text = f"{100 * value:.1f}"
    return f"{text + f' [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]' if interval else text:>24}"
