"""The report page: one HTML file with tables, curves and a gallery, which opens from the file system.

File and class names are data, never markup: they are embedded as JSON with escaped angle brackets, and the page only
shows them as text.
"""

import base64
import io
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pairloc.boxes import Floats, iou, to_xywh
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.images import ImageError, open_image
from pairloc.io import write_bytes, write_text
from pairloc.report.outlines import Outline
from pairloc.report.reasons import Reasons

_THUMBNAIL = 320  # pixels of the longer side
_THREADS = 4  # that make thumbnails; few, because each may hold an image of 179 megapixels


@dataclass(frozen=True)
class MethodResult:
    """The boxes and measurements of a method, under the indices of the report's data set."""

    name: str
    boxes: ScoredBoxes
    corloc: dict[str, Any] = field(default_factory=dict)  # by threshold: mean, interval, per_class
    seconds: float | None = None
    history: Sequence[dict[str, Any]] = ()  # steps of the loop: round, step, changed, objective
    tag: str = ""  # a short name; by default, the first four letters of the name
    least: float = 0.0  # boxes of lower confidence are left out of the published ones, and marked on the page
    reasons: Mapping[tuple[int, int], Reasons] = field(default_factory=dict)  # by (image, class)
    outlines: Mapping[tuple[int, int], Outline] = field(default_factory=dict)  # of masks, by (image, class)

    @property
    def short(self) -> str:
        """The label drawn on a box."""
        return self.tag or self.name[:4]


def is_plain(methods: Sequence[MethodResult], truth: GroundTruth | None) -> bool:
    """Whether there is nothing to compare (one method, no ground truth): the page shows only boxes and confidence."""
    return len(methods) == 1 and truth is None


def write_page(
    out: Path,
    dataset: Dataset,
    methods: Sequence[MethodResult],
    truth: GroundTruth | None = None,
    *,
    about: str = "",
    ceiling: Mapping[str, float] | None = None,
    embed: int = 300,
    beside: Path | None = None,
    link: str | None = None,
    track: Callable[[Iterable[int], int], Iterable[int]] = lambda items, total: items,
) -> int:
    """Write the page to `out`; returns the number of images shown.

    The first `embed` images are stored inside the page, the others in the folder `beside` (default: NAME_files next to
    it), which the page refers to as `link` (default: the folder's name). `ceiling` is, by threshold, the CorLoc if the
    best proposals were selected. `track` wraps the images for a progress bar.
    """
    beside = beside or out.with_name(f"{out.stem}_files")
    link = link or beside.name
    tagged = [index for index, tags in enumerate(dataset.tags) if tags]
    with warnings.catch_warnings(), ThreadPoolExecutor(_THREADS) as pool:
        # Damaged images warn. Warning filters are global, so they are set here and not in each thread.
        warnings.simplefilter("ignore")
        folders = [None if position < embed else beside for position in range(len(tagged))]
        drawn = pool.map(lambda index, folder: _thumbnail(dataset, index, folder, link), tagged, folders)
        thumbnails = dict(zip(track(tagged, len(tagged)), drawn, strict=True))
    named = [_with_tag(method, index, methods) for index, method in enumerate(methods)]
    reasons = sorted({name for method in named for entry in method.reasons.values() for name, *_ in entry.parts})
    numbers = {name: number for number, name in enumerate(reasons)}
    plain = is_plain(named, truth)
    data = {
        "plain": plain,
        "about": about or f"{len(tagged)} images, {len(dataset.classes)} classes",
        "classes": list(dataset.classes),
        "thresholds": sorted({threshold for method in named for threshold in method.corloc}),
        "methods": [_facts(method) for method in named],
        "ceiling": dict(ceiling or {}),
        "charts": [] if plain else _charts(named),
        "reasons": reasons,
        "items": _items(dataset, named, truth, thumbnails, numbers),
    }
    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    write_text(out, template.replace("__DATA__", _json(data)))
    return len(tagged)


def _facts(method: MethodResult) -> dict[str, Any]:
    """What the page says about a method besides its boxes."""
    return {
        "name": method.name, "title": method.name, "tag": method.tag, "corloc": method.corloc,
        "seconds": method.seconds, "least": method.least,
    }  # fmt: skip


def _json(data: object) -> str:
    """JSON that cannot close the script element around it."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _with_tag(method: MethodResult, index: int, methods: Sequence[MethodResult]) -> MethodResult:
    """Method number `index` with its tag set, numbered if an earlier method has the same short name."""
    earlier = sum(other.short == method.short for other in methods[:index])
    tag = method.short if not earlier else f"{method.short}{earlier + 1}"
    return replace(method, tag=tag)


def _thumbnail(dataset: Dataset, index: int, folder: Path | None, link: str) -> tuple[str, tuple[int, int]]:
    """URL of an image's thumbnail and the size of the upright image; the URL of an unreadable image is empty.

    The thumbnail is written to `folder`, or becomes a data URL if that is None.
    """
    try:
        upright = open_image(dataset.path(index))
    except ImageError:
        return "", dataset.images[index].size or (100, 100)
    size = upright.size
    upright.thumbnail((_THUMBNAIL, _THUMBNAIL))
    stream = io.BytesIO()
    upright.save(stream, "JPEG", quality=80)
    if folder is None:
        return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode(), size
    write_bytes(folder / f"{index:06d}.jpg", stream.getvalue())
    return f"{link}/{index:06d}.jpg", size


def _items(
    dataset: Dataset,
    methods: Sequence[MethodResult],
    truth: GroundTruth | None,
    thumbnails: dict[int, tuple[str, tuple[int, int]]],
    numbers: Mapping[str, int],
) -> list[dict[str, Any]]:
    """One entry per tag of every image, with the best-scored box of every method and the ground truth.

    `numbers` are those of the parts of scores, which are named once for all entries.
    """
    method_rows = [_rows_by_key(method.boxes.image, method.boxes.label) for method in methods]
    truth_rows = {} if truth is None else _rows_by_key(truth.image[~truth.ignored], truth.label[~truth.ignored])
    truth_boxes = np.zeros((0, 4)) if truth is None else truth.boxes[~truth.ignored]
    items = []
    for index, (thumbnail, size) in thumbnails.items():
        for label in dataset.tags[index]:
            tag_truth = truth_boxes[truth_rows.get((index, label), [])]
            boxes = {}
            for method, rows_by_key in zip(methods, method_rows, strict=True):
                rows = rows_by_key.get((index, label))
                if rows:
                    best = max(rows, key=lambda row: np.nan_to_num(method.boxes.score[row], nan=-1.0))
                    box = _box(method.boxes.boxes[best], method.boxes.score[best], tag_truth)
                    mask = method.outlines.get((index, label))
                    shape = {} if mask is None else {"mask": mask.path, "grid": mask.grid}
                    boxes[method.tag] = box | shape | _why(method.reasons.get((index, label)), numbers)
            items.append(
                {
                    "file": dataset.images[index].file, "class": label, "thumbnail": thumbnail, "size": list(size),
                    "truth": to_xywh(tag_truth).round(2).tolist(), "boxes": boxes,
                }
            )  # fmt: skip
    return items


def _box(box: Floats, score: float, truth: Floats) -> dict[str, Any]:
    overlap = float(iou(box[None], truth).max()) if len(truth) else 0.0
    value = 1.0 if np.isnan(score) else float(score)
    return {"box": to_xywh(box).round(2).tolist(), "score": round(value, 4), "iou": round(overlap, 4)}


def _why(reasons: Reasons | None, numbers: Mapping[str, int]) -> dict[str, Any]:
    if reasons is None:
        return {}
    box = None if reasons.box is None else to_xywh(np.array(reasons.box)).round(1).tolist()
    return {"why": [[numbers[name], *values] for name, *values in reasons.parts], "other": box}


def _rows_by_key(image: Any, label: Any) -> dict[tuple[int, int], list[int]]:
    """Rows of boxes by (image, class)."""
    rows: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(image.tolist(), label.tolist(), strict=True)):
        rows.setdefault(key, []).append(row)
    return rows


def _charts(methods: Sequence[MethodResult]) -> list[dict[str, Any]]:
    """Charts of the page: CorLoc over time, changed boxes and the objective; charts with one point are dropped."""
    corloc_over_time = [
        {"tag": m.tag, "points": [[m.seconds, 100 * m.corloc["0.5"]["mean"]]]}
        for m in methods
        if m.seconds is not None and "0.5" in m.corloc
    ]
    changed, objective = [], []
    for method in methods:
        changes = [[step["round"], step["changed"]] for step in method.history if step["step"] == "re-localize"]
        if len(changes) > 2:  # the first counts all boxes, so it is not shown
            changed.append({"tag": method.tag, "points": changes[1:]})
        values = [[n, s["objective"]] for n, s in enumerate(method.history) if s.get("objective") is not None]
        if len(values) > 1:
            objective.append({"tag": method.tag, "points": values})
    charts: list[dict[str, Any]] = [
        {"title": "CorLoc@0.5 (%)", "x": "seconds", "lines": corloc_over_time},
        {"title": "changed boxes", "x": "round", "lines": changed},
        {"title": "objective", "x": "half step", "lines": objective},
    ]
    return [chart for chart in charts if sum(len(line["points"]) for line in chart["lines"]) > 1]
