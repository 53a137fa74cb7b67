"""Label Studio JSON: tasks with rectangles in percent of the image, and choices as tags."""

import math
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from pairloc.data.building import Builder, number
from pairloc.errors import InputError, shown
from pairloc.files import read_json


def matches(path: Path) -> bool:
    """Whether this is a JSON file that holds a list (COCO's holds an object)."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def parse(path: Path, builder: Builder) -> None:
    """Read tasks: the annotations of each, or its predictions where nobody annotated it."""
    tasks = read_json(path)
    if not isinstance(tasks, list) or not all(isinstance(task, dict) and "data" in task for task in tasks):
        raise InputError(f"{path}: is not a Label Studio export: not a list of tasks with 'data'")
    for index, task in enumerate(tasks):
        place = f"{path}: [{index}]"
        results = _results(task)
        image = builder.image(_file(task["data"]), place, size=_size(results))
        for number_, result in enumerate(results):
            _parse_result(result, image, f"{place} result {number_ + 1}", builder)
    builder.look_in([path.parent / "images", path.parent, path.parent.parent])


def _results(task: dict[str, Any]) -> list[dict[str, Any]]:
    for key in ("annotations", "predictions"):
        groups = task.get(key)
        groups = [group for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
        lists = [group["result"] for group in groups if isinstance(group.get("result"), list)]
        results = [result for entries in lists for result in entries if isinstance(result, dict)]
        if results:
            return results
    return []


def _file(data: object) -> object:
    """The picture's name from the address Label Studio knows it by."""
    address = (
        next((value for value in data.values() if isinstance(value, str)), None) if isinstance(data, dict) else data
    )
    if not isinstance(address, str):
        return address
    try:
        parts = urlsplit(address)
    except ValueError:
        return address
    if local := parse_qs(parts.query).get("d"):
        return local[0]
    if (parts.scheme and parts.netloc) or address.startswith("/data/"):
        return unquote(parts.path).rsplit("/", 1)[-1]
    return address


def _size(results: list[dict[str, Any]]) -> tuple[object, object] | None:
    sized = (result for result in results if "original_width" in result and "original_height" in result)
    first = next(sized, None)
    return None if first is None else (first["original_width"], first["original_height"])


def _parse_result(result: dict[str, Any], image: int, place: str, builder: Builder) -> None:
    value = result.get("value")
    if not isinstance(value, dict):
        builder.findings.add("bad-entry", place, f"the value is {shown(value)}")
        return
    names = value.get("rectanglelabels", value.get("choices"))
    if not isinstance(names, list):
        return  # another kind of mark: brushes, key points, text
    for name in names:
        label = builder.label(name, place)
        if "rectanglelabels" in value:
            builder.box(image, label, _corners(value, result), place, score=result.get("score"))
        else:
            builder.tag(image, label)


def _corners(value: dict[str, Any], result: dict[str, Any]) -> list[object]:
    """Corners in pixels of the box around a rectangle, which is turned about its upper left corner."""
    sides = [number(value.get(side)) for side in ("x", "y", "width", "height")]
    size = [number(result.get(side)) for side in ("original_width", "original_height")]
    if None in sides or None in size:
        return []
    x, y, width, height = (float(side or 0) * float(size[axis % 2] or 0) / 100 for axis, side in enumerate(sides))
    angle = math.radians(number(value.get("rotation", 0)) or 0.0)
    if not math.isfinite(x + y + width + height + angle):
        return [math.nan] * 4
    sin, cos = math.sin(angle), math.cos(angle)
    xs = [x, x + width * cos, x - height * sin, x + width * cos - height * sin]
    ys = [y, y + width * sin, y + height * cos, y + width * sin + height * cos]
    return [min(xs), min(ys), max(xs), max(ys)]
