"""One folder per class: the name of the folder is the tag of its images."""

from pathlib import Path

from pairloc.datasets.building import Builder, files_below, images_below
from pairloc.errors import InputError

_ANNOTATIONS = (".json", ".xml", ".csv", ".yaml", ".yml")
_SPLITS = {"train", "val", "valid", "test", "train2017", "val2017", "test2017", "images", "labels", "annotations"}
_UNSUPPORTED = (".heic", ".heif", ".avif", ".jp2", ".jxl", ".dng", ".cr2", ".nef", ".arw", ".svg", ".pdf")


def matches(path: Path) -> bool:
    """Whether a folder has at least two class folders with images, no images outside them and no annotation files."""
    if not path.is_dir():
        return False
    names = images_below(path)
    classes = {name.split("/")[0] for name in names}
    annotated = any(file.suffix in _ANNOTATIONS for depth in ("*", "*/*") for file in path.glob(depth))
    return len(classes - _SPLITS) >= 2 and not any(_is_top_level(name) for name in names) and not annotated


def parse(path: Path, builder: Builder) -> None:
    """Read every subfolder as a class."""
    root = builder.folder or path
    if not root.is_dir():
        raise InputError(f"{root}: is not a folder; pass the folder that contains one folder per class")
    for name in images_below(root):
        if not _is_top_level(name):
            place = str(root / name)
            builder.tag(builder.image(name, place), builder.label(name.split("/")[0], place))
    for name in files_below(root, _UNSUPPORTED):
        builder.findings.add("unreadable-image", root / name, "has an unsupported image format; convert it to JPEG")
    builder.folder = root


def _is_top_level(name: str) -> bool:
    return "/" not in name
