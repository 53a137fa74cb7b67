"""CVAT for images 1.1: one XML file of images with boxes and tags."""

import math
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pairloc.datasets.building import Builder, number
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.formats.writing import ImageFiles, by_image, has_score
from pairloc.io import read_xml, write_bytes

ONE_FILE = True
_CORNERS = ("xtl", "ytl", "xbr", "ybr")


def matches(path: Path) -> bool:
    """Whether this is an XML file that begins as CVAT's do."""
    if path.suffix.lower() != ".xml" or not path.is_file():
        return False
    with path.open("rb") as stream:
        return b"<annotations" in stream.read(4096)


def parse(path: Path, builder: Builder) -> None:
    """Read the images of a CVAT file; a box's `score` attribute is its score, a polygon counts as the box around it."""
    root = read_xml(path)
    if root.tag != "annotations":
        raise InputError(f"{path}: is not a CVAT file: its root is <{root.tag[:40]}>, not <annotations>")
    for label in root.iterfind("meta//labels/label/name"):
        builder.label(label.text, f"{path}: <meta> labels")
    if root.find("track") is not None and root.find("image") is None:
        raise InputError(f"{path}: is CVAT for video; export it as 'CVAT for images'")
    for index, entry in enumerate(root.iterfind("image")):
        place = f"{path}: image {index + 1}"
        size = (entry.get("width"), entry.get("height"))
        image = builder.image(entry.get("name"), place, size=size)
        for mark_index, mark in enumerate(entry):
            _parse_mark(mark, image, f"{place}, {mark.tag} {mark_index + 1}", builder)
    builder.look_in([path.parent / "images", path.parent, path.parent.parent])


def _parse_mark(mark: Element, image: int, place: str, builder: Builder) -> None:
    if mark.tag not in ("tag", "box", "polygon"):
        builder.findings.add("other-mark", place, f"is a {mark.tag[:40]}")
        return
    label = builder.label(mark.get("label"), place)
    if mark.tag == "tag":
        builder.tag(image, label)
        return
    score = next((item.text for item in mark.iterfind("attribute") if item.get("name") == "score"), None)
    builder.box(image, label, _turned(mark) if mark.tag == "box" else _around(mark), place, score=score or None)


def _turned(box: Element) -> list[object]:
    """The corners of a box, or of the box around it if it is turned (about its centre)."""
    corners = [number(box.get(side)) for side in _CORNERS]
    angle = math.radians(number(box.get("rotation", "0")) or 0.0)
    match corners:
        case [float(x1), float(y1), float(x2), float(y2)] if angle and math.isfinite(x1 + y1 + x2 + y2 + angle):
            sin, cos = abs(math.sin(angle)), abs(math.cos(angle))
            width, height = (x2 - x1) * cos + (y2 - y1) * sin, (x2 - x1) * sin + (y2 - y1) * cos
            x, y = (x1 + x2) / 2, (y1 + y2) / 2
            return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        case _:
            return [box.get(side) for side in _CORNERS]


def _around(polygon: Element) -> list[object]:
    """The corners of the box around a polygon `x,y;x,y;...`."""
    pairs = [[number(word) for word in point.split(",")] for point in (polygon.get("points") or "").split(";")]
    xs, ys = ([pair[axis] if len(pair) == 2 else None for pair in pairs] for axis in (0, 1))
    if None in xs or None in ys:
        return [polygon.get("points")]
    across, along = ([float(side or 0) for side in sides] for sides in (xs, ys))
    return [min(across), min(along), max(across), max(along)]


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write `annotations.xml`, which CVAT takes by 'Upload annotations'; its labels need a number attribute `score`."""
    root = Element("annotations")
    SubElement(root, "version").text = "1.1"
    task = SubElement(SubElement(root, "meta"), "task")
    SubElement(task, "size").text = str(len(dataset))
    labels = SubElement(task, "labels")
    for name in dataset.classes:
        label = SubElement(labels, "label")
        SubElement(label, "name").text = name
        attribute = SubElement(SubElement(label, "attributes"), "attribute")
        for key, value in (
            ("name", "score"),
            ("mutable", "False"),
            ("input_type", "text"),
            ("default_value", ""),
        ):
            SubElement(attribute, key).text = value
        SubElement(attribute, "values").text = ""
    for index, rows in enumerate(by_image(dataset, boxes)):
        width, height = images.size(index)
        image = SubElement(
            root,
            "image",
            id=str(index),
            name=dataset.images[index].file,
            width=str(width),
            height=str(height),
        )
        for row in rows:
            corners = {side: f"{corner:.2f}" for side, corner in zip(_CORNERS, boxes.boxes[row].tolist(), strict=True)}
            name, score = dataset.classes[boxes.label[row]], float(boxes.score[row])
            box = SubElement(
                image, "box", {"label": name, "source": "auto", "occluded": "0", **corners, "z_order": "0"}
            )
            if has_score(score):
                SubElement(box, "attribute", name="score").text = repr(score)
    indent(root)
    write_bytes(folder / "annotations.xml", tostring(root, encoding="utf-8", xml_declaration=True))
    images.copy_to(folder / "images")
