"""A folder per class: the folder's name is the tag of every picture in it."""

from pathlib import Path

from pairloc.data.building import Builder, pictures_below
from pairloc.errors import InputError


def matches(path: Path) -> bool:
    """Whether several folders with pictures lie here, and no pictures beside them."""
    return len(_classes(path)) >= 2 and not any(_is_top_level(name) for name in pictures_below(path))


def parse(path: Path, builder: Builder) -> None:
    """Read every folder as a class."""
    root = builder.folder or path
    if not root.is_dir():
        raise InputError(f"{root}: is not a folder of folders, one per class")
    for name in pictures_below(root):
        if not _is_top_level(name):
            place = str(root / name)
            builder.tag(builder.image(name, place), builder.label(name.split("/")[0], place))
    builder.folder = root


def _classes(path: Path) -> set[str]:
    if not path.is_dir():
        return set()
    return {name.split("/")[0] for name in pictures_below(path) if not _is_top_level(name)}


def _is_top_level(name: str) -> bool:
    return "/" not in name
