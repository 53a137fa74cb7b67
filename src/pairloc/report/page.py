"""The report: one page that opens from the file system, with the table, the curves and the gallery.

Names and classes are data, never markup: they travel as JSON whose angle brackets are escaped, and the page shows them
as text alone.
"""

import base64
import io
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pairloc.boxes import Floats, iou, to_xywh
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.images import ImageError, open_image
from pairloc.io import write_bytes, write_text

_THUMBNAIL = 320  # px of the longer side
_THREADS = 4  # that draw thumbnails; each may hold an image of 200 megapixels


@dataclass(frozen=True)
class MethodResult:
    """What a method found, under the indices of the report's data set."""

    name: str
    boxes: ScoredBoxes
    corloc: dict[str, Any] = field(default_factory=dict)  # by threshold: mean, interval, per_class
    seconds: float | None = None
    history: Sequence[dict[str, Any]] = ()
    tag: str = ""  # a short name; the first letters of the name unless given

    @property
    def short(self) -> str:
        """What stands on a box."""
        return self.tag or self.name[:4]


def is_plain(methods: Sequence[MethodResult], truth: GroundTruth | None) -> bool:
    """Whether there is nothing to compare: one method and no truth. The page then shows boxes and confidence alone."""
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
    """Write the page; the number of images shown. Those beyond the first `embed` lie in a folder beside it.

    That folder is `beside`, NAME_files unless given; the page calls it `link`, by its name unless given. `ceiling` is,
    by threshold, the CorLoc the best proposals would reach.
    """
    beside = beside or out.with_name(f"{out.stem}_files")
    link = link or beside.name
    tagged = [index for index, tags in enumerate(dataset.tags) if tags]
    with warnings.catch_warnings(), ThreadPoolExecutor(_THREADS) as pool:
        warnings.simplefilter("ignore")  # of damaged images; threads cannot each hide and show them again
        folders = [None if place < embed else beside for place in range(len(tagged))]
        drawn = pool.map(lambda index, folder: _thumbnail(dataset, index, folder, link), tagged, folders)
        thumbnails = dict(zip(track(tagged, len(tagged)), drawn, strict=True))
    named = [_with_tag(method, place, methods) for place, method in enumerate(methods)]
    plain = is_plain(named, truth)
    data = {
        "plain": plain,
        "about": about or f"{len(tagged)} images, {len(dataset.classes)} classes",
        "classes": list(dataset.classes),
        "thresholds": sorted({threshold for method in named for threshold in method.corloc}),
        "methods": [
            {"name": m.name, "title": m.name, "tag": m.tag, "corloc": m.corloc, "seconds": m.seconds} for m in named
        ],
        "ceiling": dict(ceiling or {}),
        "charts": [] if plain else _charts(named),
        "items": _items(dataset, named, truth, thumbnails),
    }
    template = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")
    write_text(out, template.replace("__DATA__", _json(data)))
    return len(tagged)


def _json(data: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _with_tag(method: MethodResult, place: int, methods: Sequence[MethodResult]) -> MethodResult:
    """A short tag a method, with a number where several runs have the method."""
    earlier = sum(other.short == method.short for other in methods[:place])
    tag = method.short if not earlier else f"{method.short}{earlier + 1}"
    return MethodResult(method.name, method.boxes, method.corloc, method.seconds, method.history, tag)


def _thumbnail(dataset: Dataset, index: int, folder: Path | None, link: str) -> tuple[str, tuple[int, int]]:
    """Where an image's thumbnail is, and the size of the image as shown; an unreadable one is left blank."""
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
) -> list[dict[str, Any]]:
    """Every tag of every image, with the boxes of all methods and of the truth."""
    found = [_by_key(method.boxes.image, method.boxes.label) for method in methods]
    true = {} if truth is None else _by_key(truth.image[~truth.ignored], truth.label[~truth.ignored])
    true_boxes = np.zeros((0, 4)) if truth is None else truth.boxes[~truth.ignored]
    items = []
    for index, (thumbnail, size) in thumbnails.items():
        for label in dataset.tags[index]:
            own = true_boxes[true.get((index, label), [])]
            boxes = {}
            for method, rows in zip(methods, found, strict=True):
                mine = rows.get((index, label))
                if mine:
                    best = max(mine, key=lambda row: np.nan_to_num(method.boxes.score[row], nan=-1.0))
                    boxes[method.tag] = _box(method.boxes.boxes[best], method.boxes.score[best], own)
            items.append(
                {
                    "file": dataset.images[index].file, "class": label, "thumbnail": thumbnail, "size": list(size),
                    "truth": to_xywh(own).round(2).tolist(), "boxes": boxes,
                }
            )  # fmt: skip
    return items


def _box(box: Floats, score: float, truth: Floats) -> dict[str, Any]:
    overlap = float(iou(box[None], truth).max()) if len(truth) else 0.0
    value = 1.0 if np.isnan(score) else float(score)
    return {"box": to_xywh(box).round(2).tolist(), "score": round(value, 4), "iou": round(overlap, 4)}


def _by_key(image: Any, label: Any) -> dict[tuple[int, int], list[int]]:
    rows: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(image.tolist(), label.tolist(), strict=True)):
        rows.setdefault(key, []).append(row)
    return rows


def _charts(methods: Sequence[MethodResult]) -> list[dict[str, Any]]:
    """Lines the page draws: CorLoc against time, boxes that changed, the objective; not where there is one point."""
    timed = [
        {"tag": m.tag, "points": [[m.seconds, 100 * m.corloc["0.5"]["mean"]]]}
        for m in methods
        if m.seconds is not None and "0.5" in m.corloc
    ]
    changed, objective = [], []
    for method in methods:
        moves = [[step["round"], step["changed"]] for step in method.history if step["step"] == "re-localize"]
        if len(moves) > 2:  # the first of them are all the boxes
            changed.append({"tag": method.tag, "points": moves[1:]})
        measured = [[n, s["objective"]] for n, s in enumerate(method.history) if s.get("objective") is not None]
        if len(measured) > 1:
            objective.append({"tag": method.tag, "points": measured})
    charts: list[dict[str, Any]] = [
        {"title": "CorLoc@0.5 (%)", "x": "seconds", "lines": timed},
        {"title": "boxes that changed", "x": "round", "lines": changed},
        {"title": "objective", "x": "half step", "lines": objective},
    ]
    return [chart for chart in charts if sum(len(line["points"]) for line in chart["lines"]) > 1]
