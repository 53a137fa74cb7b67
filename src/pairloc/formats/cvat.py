"""CVAT for images 1.1: one XML file with the boxes and tags of all images."""

import math
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pairloc.datasets.building import Builder, parse_number
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.formats.writing import ImageFiles, by_image, has_score
from pairloc.io import read_xml, write_bytes

ONE_FILE = True
_CORNERS = ("xtl", "ytl", "xbr", "ybr")


def matches(path: Path) -> bool:
    """Whether this is an XML file with `<annotations` near its start."""
    if path.suffix.lower() != ".xml" or not path.is_file():
        return False
    with path.open("rb") as stream:
        return b"<annotations" in stream.read(4096)


def parse(path: Path, builder: Builder) -> None:
    """Read a CVAT file; the attribute `score` of a box is its score, a polygon is read as its bounding box."""
    root = read_xml(path)
    if root.tag != "annotations":
        raise InputError(f"{path}: is not a CVAT file: its root is <{root.tag[:40]}>, not <annotations>")
    for label in root.iterfind("meta//labels/label/name"):
        builder.label(label.text, f"{path}: <meta> labels")
    if root.find("track") is not None and root.find("image") is None:
        raise InputError(f"{path}: is in the format 'CVAT for video'; export it as 'CVAT for images'")
    for image_number, entry in enumerate(root.iterfind("image"), start=1):
        place = f"{path}: image {image_number}"
        size = (entry.get("width"), entry.get("height"))
        image = builder.image(entry.get("name"), place, size=size)
        for shape_number, shape in enumerate(entry, start=1):
            _parse_shape(shape, image, f"{place}, {shape.tag} {shape_number}", builder)
    builder.choose_image_folder([path.parent / "images", path.parent, path.parent.parent])


def _parse_shape(shape: Element, image: int, place: str, builder: Builder) -> None:
    if shape.tag not in ("tag", "box", "polygon"):
        builder.findings.add("other-mark", place, f"has the type {shape.tag[:40]!r}")
        return
    label = builder.label(shape.get("label"), place)
    if shape.tag == "tag":
        builder.tag(image, label)
        return
    score = next((item.text for item in shape.iterfind("attribute") if item.get("name") == "score"), None)
    corners = _box_corners(shape) if shape.tag == "box" else _polygon_corners(shape)
    builder.box(image, label, corners, place, score=score or None)


def _box_corners(box: Element) -> list[object]:
    """Corners of a box; of its bounding box if it is rotated, which CVAT does about the centre."""
    corners = [parse_number(box.get(side)) for side in _CORNERS]
    angle = math.radians(parse_number(box.get("rotation", "0")) or 0.0)
    match corners:
        case [float(x1), float(y1), float(x2), float(y2)] if angle and math.isfinite(x1 + y1 + x2 + y2 + angle):
            sin, cos = abs(math.sin(angle)), abs(math.cos(angle))
            width, height = (x2 - x1) * cos + (y2 - y1) * sin, (x2 - x1) * sin + (y2 - y1) * cos
            x, y = (x1 + x2) / 2, (y1 + y2) / 2
            return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        case _:
            return [box.get(side) for side in _CORNERS]


def _polygon_corners(polygon: Element) -> list[object]:
    """Corners of the bounding box of a polygon `x,y;x,y;...`; not four numbers if the polygon is malformed."""
    points = [[parse_number(word) for word in point.split(",")] for point in (polygon.get("points") or "").split(";")]
    xs, ys = ([point[axis] if len(point) == 2 else None for point in points] for axis in (0, 1))
    if None in xs or None in ys:
        return [polygon.get("points")]
    x, y = ([float(value or 0) for value in values] for values in (xs, ys))
    return [min(x), min(y), max(x), max(y)]


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write `annotations.xml` for 'Upload annotations' in CVAT; the labels there need an attribute `score`."""
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
