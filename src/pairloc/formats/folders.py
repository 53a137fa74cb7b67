"""A folder per class: the folder's name is the tag of every image in it."""

from pathlib import Path

from pairloc.datasets.building import Builder, files_below, images_below
from pairloc.errors import InputError

_ANNOTATIONS = (".json", ".xml", ".csv", ".yaml", ".yml")
_SPLITS = {"train", "val", "valid", "test", "train2017", "val2017", "test2017", "images", "labels", "annotations"}
_UNREAD = (".heic", ".heif", ".avif", ".jp2", ".jxl", ".dng", ".cr2", ".nef", ".arw", ".svg", ".pdf")


def matches(path: Path) -> bool:
    """Whether several folders with images lie here, no images beside them, and no annotations anywhere near."""
    if not path.is_dir():
        return False
    names = images_below(path)
    classes = {name.split("/")[0] for name in names}
    annotated = any(file.suffix in _ANNOTATIONS for depth in ("*", "*/*") for file in path.glob(depth))
    return len(classes - _SPLITS) >= 2 and not any(_is_top_level(name) for name in names) and not annotated


def parse(path: Path, builder: Builder) -> None:
    """Read every folder as a class."""
    root = builder.folder or path
    if not root.is_dir():
        raise InputError(f"{root}: is not a folder of folders, one per class")
    for name in images_below(root):
        if not _is_top_level(name):
            place = str(root / name)
            builder.tag(builder.image(name, place), builder.label(name.split("/")[0], place))
    for name in files_below(root, _UNREAD):
        builder.findings.add("unreadable-image", root / name, "is of a format that is not read; convert it to JPEG")
    builder.folder = root


def _is_top_level(name: str) -> bool:
    return "/" not in name
