"""Label Studio JSON: tasks with rectangles in percent of the image, and choices as tags."""

import math
import statistics
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pairloc import __version__
from pairloc.datasets.building import SUFFIXES, Builder, number
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError, shown
from pairloc.formats.writing import ImageFiles, by_image, has_score
from pairloc.io import read_json, write_bytes, write_json

ONE_FILE = True


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
    """The marks of the first annotation nobody cancelled; where there is none, of the first prediction."""
    for key in ("annotations", "predictions"):
        groups = task.get(key) if isinstance(task.get(key), list) else []
        for group in groups or []:
            if isinstance(group, dict) and not group.get("was_cancelled") and isinstance(group.get("result"), list):
                return [result for result in group["result"] if isinstance(result, dict)]
    return []


def _file(data: object) -> object:
    """The image's name from the address Label Studio knows it by."""
    fields = data if isinstance(data, dict) else {"image": data}
    texts = [value for value in fields.values() if isinstance(value, str)]
    names = [text for text in texts if text.lower().endswith(SUFFIXES)]
    address = fields.get("image") or next(iter(names or texts), None)
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
    if result.get("type") == "relation" or "from_id" in result:
        return
    if not isinstance(value, dict):
        builder.findings.add("bad-entry", place, f"the value is {shown(value)}")
        return
    kind = next(
        (kind for kind in ("rectanglelabels", "polygonlabels", "choices") if isinstance(value.get(kind), list)), None
    )
    if kind is None:
        builder.findings.add("other-mark", place, f"is of type {shown(result.get('type'))}")
        return
    for name in value[kind]:
        label = builder.label(name, place)
        if kind == "choices":
            builder.tag(image, label)
        else:
            corners = _corners(value, result) if kind == "rectanglelabels" else _around(value, result)
            builder.box(image, label, corners, place, score=result.get("score"))


def _around(value: dict[str, Any], result: dict[str, Any]) -> list[object]:
    """Corners in pixels of the box around a polygon."""
    points = value.get("points")
    pairs = (
        [point for point in points if isinstance(point, list) and len(point) == 2] if isinstance(points, list) else []
    )
    width, height = number(result.get("original_width")), number(result.get("original_height"))
    xs, ys = ([number(pair[axis]) for pair in pairs] for axis in (0, 1))
    if width is None or height is None or not pairs or None in xs or None in ys:
        return []
    across, along = ([float(side or 0) / 100 for side in sides] for sides in (xs, ys))
    return [min(across) * width, min(along) * height, max(across) * width, max(along) * height]


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


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write `tasks.json` with predictions to review, and `labeling_config.xml` for the project.

    A task's `data.image` is the image's name; put your storage's address in front of it.
    """
    tasks = []
    for index, rows in enumerate(by_image(dataset, boxes)):
        width, height = images.size(index)
        scores = [float(boxes.score[row]) for row in rows]
        results: list[dict[str, object]] = []
        for row, score in zip(rows, scores, strict=True):
            x1, y1, x2, y2 = boxes.boxes[row].tolist()
            value = {
                "x": 100 * x1 / width,
                "y": 100 * y1 / height,
                "width": 100 * (x2 - x1) / width,
                "height": 100 * (y2 - y1) / height,
                "rotation": 0,
                "rectanglelabels": [dataset.classes[boxes.label[row]]],
            }
            result = {
                "id": f"box{row + 1}",
                "type": "rectanglelabels",
                "from_name": "label",
                "to_name": "image",
                "original_width": width,
                "original_height": height,
                "image_rotation": 0,
                "value": value,
            }
            results.append(result | ({"score": score} if has_score(score) else {}))
        known = [score for score in scores if has_score(score)]
        prediction: dict[str, object] = {"model_version": f"pairloc {__version__}", "result": results}
        prediction |= {"score": statistics.fmean(known)} if known else {}
        tasks.append({"data": {"image": dataset.images[index].file}, "predictions": [prediction]})
    write_json(folder / "tasks.json", tasks)
    view = Element("View")
    SubElement(view, "Image", name="image", value="$image")
    choices = SubElement(view, "RectangleLabels", name="label", toName="image")
    for name in dataset.classes:
        SubElement(choices, "Label", value=name)
    indent(view)
    write_bytes(folder / "labeling_config.xml", tostring(view, encoding="utf-8"))
