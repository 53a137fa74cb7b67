"""PASCAL VOC folders: one XML file per image, with 1-based inclusive corners."""

import math
from collections.abc import Callable
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pairloc.boxes import Size
from pairloc.datasets.building import SUFFIXES, Builder, images_below, parse_number
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.formats.writing import ImageFiles, by_image, has_score, stems
from pairloc.io import read_text, read_xml, write_bytes, write_text

_IMAGE_FOLDERS = ("JPEGImages", "images", "Images", ".")


def matches(path: Path) -> bool:
    """Whether this is a VOC folder, a VOCdevkit with a single year, or an image set inside one."""
    root = _root(path)
    return root is not None and not (root / "Annotations" / "DET").is_dir()


def parse(path: Path, builder: Builder) -> None:
    """Read the XML files of a VOC folder, or those of an image set such as `ImageSets/Main/train.txt`."""
    root = _root(path)
    if root is None:
        raise InputError(f"{path}: is not a VOC folder: it has no folder 'Annotations'")
    annotations = root / "Annotations"
    if path.is_file():
        listed = image_set(path, builder, lambda name: (annotations / f"{name}.xml").is_file())
        xmls = [annotations / f"{name}.xml" for name, _ in listed]
    else:
        xmls = sorted(annotations.rglob("*.xml"))
    if builder.folder is None:
        builder.folder = next((root / name for name in _IMAGE_FOLDERS if (root / name).is_dir()), root)
    files = ImageNames(builder.folder)
    for xml in xmls:
        stem = xml.relative_to(annotations).with_suffix("").as_posix()
        parse_xml(xml, files.find(stem), builder, first_pixel=1)


def _root(path: Path) -> Path | None:
    """The folder that contains `Annotations`; None if there is none."""
    if path.is_file():
        folders = path.absolute().parents[:4] if path.suffix == ".txt" and "ImageSets" in path.absolute().parts else []
        return next((folder for folder in folders if (folder / "Annotations").is_dir()), None)
    if (path / "Annotations").is_dir():
        return path
    years = [folder for folder in path.glob("VOC*") if (folder / "Annotations").is_dir()]
    return years[0] if len(years) == 1 else None


def image_set(path: Path, builder: Builder, exists: Callable[[str], bool]) -> list[tuple[str, str]]:
    """Read the lines of an image set as (name, place); a flag after the name (`000012 -1`) is dropped.

    `exists(name)` tells whether the whole line is the name of an image: names may end with a number, too.
    """
    lines = []
    for line_number, line in enumerate(read_text(path).split("\n"), start=1):
        place = f"{path}: line {line_number}"
        if line.strip() and (name := builder.file_name(line.strip(), place)):
            stem, _, flag = name.rpartition(" ")
            is_flagged = stem and flag.lstrip("-").isdecimal() and not exists(name)
            lines.append((stem.strip() if is_flagged else name, place))
    return lines


class ImageNames:
    """Index of the images below a folder by their name without suffix, to find the image of an annotation."""

    def __init__(self, folder: Path) -> None:
        self._by_stem: dict[str, str] = {}
        for name in images_below(folder) if folder.is_dir() else []:
            self._by_stem.setdefault(name.rpartition(".")[0], name)

    def find(self, stem: str) -> str | None:
        """The name of the image relative to the folder, or None."""
        return self._by_stem.get(stem)


def parse_xml(
    xml: Path, file: str | None, builder: Builder, *, first_pixel: int, names: dict[str, str] | None = None
) -> None:
    """Add one annotation file to the builder.

    `file` is the name of its image, None to take the name in the XML. `names` maps class names to the names to use.
    Coordinates count from `first_pixel` (1 in VOC, 0 in ILSVRC); xmax and ymax are inclusive.
    """
    try:
        root = read_xml(xml)
    except InputError as error:
        builder.findings.add("bad-file", xml, str(error).removeprefix(f"{xml}: "))
        return
    width, height = (root.findtext(f"size/{side}") for side in ("width", "height"))
    missing = (None, "", "0")  # some tools write 0 for an unknown size
    size = None if width in missing or height in missing else (width, height)
    image = builder.image(file or _file_name(root, xml), str(xml), size=size)
    for number, thing in enumerate(root.iter("object"), start=1):
        place = f"{xml}: object {number}"
        name = (thing.findtext("name") or "").strip()
        label = builder.label((names or {}).get(name, name), place)
        box = thing.find("bndbox")
        if box is None:
            builder.tag(image, label)
            continue
        x1, y1, x2, y2 = (parse_number(box.findtext(side) or "") for side in ("xmin", "ymin", "xmax", "ymax"))
        if x1 is None or y1 is None or x2 is None or y2 is None:
            builder.findings.add("bad-entry", place, "the box needs four numbers xmin, ymin, xmax, ymax")
            continue
        corners = [x1 - first_pixel, y1 - first_pixel, x2 - first_pixel + 1, y2 - first_pixel + 1]
        ignored = (thing.findtext("difficult") or "0").strip() == "1"
        builder.box(
            image, label, corners, place, ignored=ignored, score=(thing.findtext("score") or "").strip() or None
        )


def _file_name(root: Element, xml: Path) -> str:
    """The file name of the image according to the annotation; ILSVRC omits the suffix."""
    name = (root.findtext("filename") or xml.stem).strip()
    return name if name.lower().endswith(SUFFIXES) else f"{name}.jpg"


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write a VOC folder: one XML file per image, an image set that lists them, and `labelmap.txt` for CVAT.

    Corners are rounded to whole pixels; an object with a score has an element `score`.
    """
    names = stems(dataset)
    for index, (name, rows) in enumerate(zip(names, by_image(dataset, boxes), strict=True)):
        size = images.size(index)
        root = Element("annotation")
        _add(root, "folder", "JPEGImages")
        _add(root, "filename", dataset.images[index].file)
        size_element = SubElement(root, "size")
        for side, value in zip(("width", "height", "depth"), (*size, 3), strict=True):
            _add(size_element, side, value)
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
        write_bytes(folder / "Annotations" / f"{name}.xml", tostring(root, encoding="utf-8"))
    write_text(folder / "ImageSets" / "Main" / "default.txt", "".join(f"{name}\n" for name in names))
    lines = "".join(f"{name}:::\n" for name in dataset.classes if ":" not in name)
    write_text(folder / "labelmap.txt", f"# label:color_rgb:parts:actions\n{lines}")
    images.copy_to(folder / "JPEGImages")


def _add_object(root: Element, name: str, box: list[float], score: float, size: Size) -> None:
    thing = SubElement(root, "object")
    _add(thing, "name", name)
    for key, value in (("pose", "Unspecified"), ("truncated", 0), ("difficult", 0)):
        _add(thing, key, value)
    corners = SubElement(thing, "bndbox")
    x1, x2 = _round_range(box[0], box[2], size[0])
    y1, y2 = _round_range(box[1], box[3], size[1])
    for side, corner in (("xmin", x1 + 1), ("ymin", y1 + 1), ("xmax", x2), ("ymax", y2)):
        _add(corners, side, corner)
    if has_score(score):
        _add(thing, "score", repr(score))


def _round_range(low: float, high: float, side: int) -> tuple[int, int]:
    """Round a range to whole pixels inside an image of `side` pixels; the result has at least one pixel."""
    first, last = (math.floor(value + 0.5) for value in (low, high))
    first = min(max(first, 0), side - 1)
    return first, min(max(last, first + 1), side)


def _add(parent: Element, tag: str, text: object) -> None:
    SubElement(parent, tag).text = str(text)
