"""PASCAL VOC: `Annotations/*.xml` with whole pixels, the image set that lists them, and CVAT's list of classes."""

import math
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from pairloc.boxes import Size
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.export.pictures import Pictures, by_image, has_score, stems


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, pictures: Pictures) -> None:
    """Write a VOC folder; corners are 1-based and inclusive, a `score` stands beside every box."""
    names = stems(dataset)
    for index, (name, rows) in enumerate(zip(names, by_image(dataset, boxes), strict=True)):
        size = pictures.size(index)
        root = Element("annotation")
        _add(root, "folder", "JPEGImages")
        _add(root, "filename", dataset.images[index].file)
        sides = SubElement(root, "size")
        for side, value in zip(("width", "height", "depth"), (*size, 3), strict=True):
            _add(sides, side, value)
        _add(root, "segmented", 0)
        for row in rows:
            _add_object(
                root,
                dataset.classes[boxes.label[row]],
                boxes.boxes[row].tolist(),
                float(boxes.score[row]),
                size,
            )
        indent(root)
        file = folder / "Annotations" / f"{name}.xml"
        file.parent.mkdir(parents=True, exist_ok=True)
        ElementTree(root).write(file, encoding="utf-8")
    sets = folder / "ImageSets" / "Main"
    sets.mkdir(parents=True)
    (sets / "default.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    lines = "".join(f"{name}:::\n" for name in dataset.classes if ":" not in name)
    (folder / "labelmap.txt").write_text(f"# label:color_rgb:parts:actions\n{lines}", encoding="utf-8")
    pictures.copy_to(folder / "JPEGImages")


def _add_object(root: Element, name: str, box: list[float], score: float, size: Size) -> None:
    thing = SubElement(root, "object")
    _add(thing, "name", name)
    for key, value in (("pose", "Unspecified"), ("truncated", 0), ("difficult", 0)):
        _add(thing, key, value)
    corners = SubElement(thing, "bndbox")
    x1, x2 = _whole(box[0], box[2], size[0])
    y1, y2 = _whole(box[1], box[3], size[1])
    for side, corner in (("xmin", x1 + 1), ("ymin", y1 + 1), ("xmax", x2), ("ymax", y2)):
        _add(corners, side, corner)
    if has_score(score):
        _add(thing, "score", repr(score))


def _whole(low: float, high: float, most: int) -> tuple[int, int]:
    """A range rounded to whole pixels, at least one of them, inside the picture."""
    first, last = (math.floor(value + 0.5) for value in (low, high))
    first = min(max(first, 0), most - 1)
    return first, min(max(last, first + 1), most)


def _add(parent: Element, tag: str, text: object) -> None:
    SubElement(parent, tag).text = str(text)
