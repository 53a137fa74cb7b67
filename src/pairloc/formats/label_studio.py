"""Label Studio JSON: tasks with rectangles in percent of the image size, and choices as tags."""

import math
import statistics
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pairloc import __version__
from pairloc.datasets.building import SUFFIXES, Builder, parse_number
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError, shown
from pairloc.formats.writing import ImageFiles, by_image, has_score
from pairloc.io import read_json, write_bytes, write_json

ONE_FILE = True


def matches(path: Path) -> bool:
    """Whether this is a JSON file with a list at its top level (COCO has an object there)."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def parse(path: Path, builder: Builder) -> None:
    """Read a list of tasks: the annotation of each, or its prediction if it has no annotation."""
    tasks = read_json(path)
    if not isinstance(tasks, list) or not all(isinstance(task, dict) and "data" in task for task in tasks):
        raise InputError(f"{path}: is not a Label Studio export: it is not a list of tasks with 'data'")
    for index, task in enumerate(tasks):
        place = f"{path}: [{index}]"
        results = _results(task)
        image = builder.image(_file(task["data"]), place, size=_size(results))
        for number, result in enumerate(results, start=1):
            _parse_result(result, image, f"{place} result {number}", builder)
    builder.choose_image_folder([path.parent / "images", path.parent, path.parent.parent])


def _results(task: dict[str, Any]) -> list[dict[str, Any]]:
    """The results of the first annotation that was not cancelled, or else of the first prediction."""
    for key in ("annotations", "predictions"):
        versions = task.get(key) if isinstance(task.get(key), list) else []
        for version in versions or []:
            if (
                isinstance(version, dict)
                and not version.get("was_cancelled")
                and isinstance(version.get("result"), list)
            ):
                return [result for result in version["result"] if isinstance(result, dict)]
    return []


def _file(data: object) -> object:
    """The file name of the image, from the URL or path in the data of a task."""
    fields = data if isinstance(data, dict) else {"image": data}
    texts = [value for value in fields.values() if isinstance(value, str)]
    names = [text for text in texts if text.lower().endswith(SUFFIXES)]
    url = fields.get("image") or next(iter(names or texts), None)
    if not isinstance(url, str):
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if local := parse_qs(parts.query).get("d"):
        return local[0]
    if (parts.scheme and parts.netloc) or url.startswith("/data/"):
        return unquote(parts.path).rsplit("/", 1)[-1]
    return url


def _size(results: list[dict[str, Any]]) -> tuple[object, object] | None:
    sized = (result for result in results if "original_width" in result and "original_height" in result)
    first = next(sized, None)
    return None if first is None else (first["original_width"], first["original_height"])


def _parse_result(result: dict[str, Any], image: int, place: str, builder: Builder) -> None:
    value = result.get("value")
    if result.get("type") == "relation" or "from_id" in result:
        return
    if not isinstance(value, dict):
        builder.findings.add("bad-entry", place, f"the value is {shown(value)}, not an object")
        return
    kind = next(
        (kind for kind in ("rectanglelabels", "polygonlabels", "choices") if isinstance(value.get(kind), list)), None
    )
    if kind is None:
        builder.findings.add("other-mark", place, f"has the type {shown(result.get('type'))}")
        return
    for name in value[kind]:
        label = builder.label(name, place)
        if kind == "choices":
            builder.tag(image, label)
        else:
            corners = _box_corners(value, result) if kind == "rectanglelabels" else _polygon_corners(value, result)
            builder.box(image, label, corners, place, score=result.get("score"))


def _polygon_corners(value: dict[str, Any], result: dict[str, Any]) -> list[object]:
    """Corners in pixels of the bounding box of a polygon; empty if the polygon is malformed."""
    points = value.get("points")
    pairs = (
        [point for point in points if isinstance(point, list) and len(point) == 2] if isinstance(points, list) else []
    )
    width, height = parse_number(result.get("original_width")), parse_number(result.get("original_height"))
    xs, ys = ([parse_number(pair[axis]) for pair in pairs] for axis in (0, 1))
    if width is None or height is None or not pairs or None in xs or None in ys:
        return []
    x, y = ([float(percent or 0) / 100 for percent in percents] for percents in (xs, ys))
    return [min(x) * width, min(y) * height, max(x) * width, max(y) * height]


def _box_corners(value: dict[str, Any], result: dict[str, Any]) -> list[object]:
    """Corners in pixels of the bounding box of a rectangle, which may be rotated about its upper left corner."""
    percents = [parse_number(value.get(side)) for side in ("x", "y", "width", "height")]
    size = [parse_number(result.get(side)) for side in ("original_width", "original_height")]
    if None in percents or None in size:
        return []
    x, y, width, height = (float(percent or 0) * float(size[i % 2] or 0) / 100 for i, percent in enumerate(percents))
    angle = math.radians(parse_number(value.get("rotation", 0)) or 0.0)
    if not math.isfinite(x + y + width + height + angle):
        return [math.nan] * 4
    sin, cos = math.sin(angle), math.cos(angle)
    xs = [x, x + width * cos, x - height * sin, x + width * cos - height * sin]
    ys = [y, y + width * sin, y + height * cos, y + width * sin + height * cos]
    return [min(xs), min(ys), max(xs), max(ys)]


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write `tasks.json` with predictions to review, and `labeling_config.xml` for the project.

    `data.image` of a task is the file name of the image; prefix it with the URL of your storage.
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
        valid_scores = [score for score in scores if has_score(score)]
        prediction: dict[str, object] = {"model_version": f"pairloc {__version__}", "result": results}
        prediction |= {"score": statistics.fmean(valid_scores)} if valid_scores else {}
        tasks.append({"data": {"image": dataset.images[index].file}, "predictions": [prediction]})
    write_json(folder / "tasks.json", tasks)
    view = Element("View")
    SubElement(view, "Image", name="image", value="$image")
    choices = SubElement(view, "RectangleLabels", name="label", toName="image")
    for name in dataset.classes:
        SubElement(choices, "Label", value=name)
    indent(view)
    write_bytes(folder / "labeling_config.xml", tostring(view, encoding="utf-8"))
