"""CVAT for images 1.1: one XML file of images with boxes and tags."""

from pathlib import Path

from pairloc.data.building import Builder
from pairloc.errors import InputError
from pairloc.files import read_xml

_CORNERS = ("xtl", "ytl", "xbr", "ybr")


def matches(path: Path) -> bool:
    """Whether this is an XML file that begins as CVAT's do."""
    if path.suffix.lower() != ".xml" or not path.is_file():
        return False
    with path.open("rb") as stream:
        return b"<annotations" in stream.read(4096)


def parse(path: Path, builder: Builder) -> None:
    """Read the images of a CVAT file; a box's `score` attribute is its score."""
    root = read_xml(path)
    if root.tag != "annotations":
        raise InputError(f"{path}: is not a CVAT file: its root is <{root.tag[:40]}>, not <annotations>")
    for label in root.iterfind("meta//labels/label/name"):
        builder.label(label.text, f"{path}: <meta> labels")
    for index, entry in enumerate(root.iterfind("image")):
        place = f"{path}: image {index + 1}"
        size = (entry.get("width"), entry.get("height"))
        image = builder.image(entry.get("name"), place, size=size)
        for tag in entry.iterfind("tag"):
            builder.tag(image, builder.label(tag.get("label"), place))
        for number_, box in enumerate(entry.iterfind("box")):
            box_place = f"{place}, box {number_ + 1}"
            score = next((item.text for item in box.iterfind("attribute") if item.get("name") == "score"), None)
            label_index = builder.label(box.get("label"), box_place)
            builder.box(image, label_index, [box.get(side) for side in _CORNERS], box_place, score=score)
    builder.look_in([path.parent / "images", path.parent, path.parent.parent])
