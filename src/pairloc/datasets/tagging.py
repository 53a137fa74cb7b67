"""Images and their tags, given in Python as lists or a mapping, as a data set."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pairloc.datasets.dataset import Dataset, Image
from pairloc.errors import InputError, shown

ImageTags = str | Sequence[str]  # one tag, or several
Tags = Sequence[ImageTags] | Mapping[str, ImageTags] | Mapping[Path, ImageTags] | Mapping[str | Path, ImageTags]


def tagged(images: Sequence[str | Path], tags: Tags) -> Dataset:
    """Make a data set of images and their tags; see `Localizer.localize`. Raises an InputError if they do not fit."""
    if isinstance(images, str | Path):
        raise InputError("images is one path; give a list of paths")
    if not isinstance(images, Sequence):
        raise InputError(f"images is {shown(images)}; give a list of paths")
    paths = [_path(image, "images") for image in images]
    lists = [_names(entry, path) for entry, path in zip(_entries(paths, tags), paths, strict=True)]
    classes = tuple(
        dict.fromkeys(name for entry in lists for name in entry)
    )  # in order of first use, as for a file of tags
    if not classes:
        raise InputError("no image has a tag")
    class_index = {name: index for index, name in enumerate(classes)}
    resolved = [path.resolve() for path in paths]
    duplicate = next((path for path, count in Counter(resolved).items() if count > 1), None)
    if duplicate is not None:
        raise InputError(f"{duplicate}: is given twice; list an image once, with all of its tags")
    root = Path(os.path.commonpath([path.parent for path in resolved]))
    files = [path.relative_to(root).as_posix() for path in resolved]
    return Dataset(
        tuple(Image(index + 1, file, None) for index, file in enumerate(files)),
        classes,
        tuple(tuple(sorted({class_index[name] for name in entry})) for entry in lists),
        folder=root,
    )


def _entries(paths: list[Path], tags: Tags) -> list[object]:
    """The tags of every image, as the caller gave them."""
    if isinstance(tags, str):
        raise InputError(f"tags is a single string, {shown(tags)}; give a list with the tags of every image")
    if isinstance(tags, Mapping):
        by_path = {_path(key, "tags"): value for key, value in tags.items()}
        if not set(by_path) & set(paths):
            raise InputError("tags has no entry for any of the images; its keys must be the paths in images")
        return [by_path.get(path, ()) for path in paths]
    if not isinstance(tags, Sequence):
        raise InputError(f"tags is {shown(tags)}; give a list with the tags of every image, or a mapping from paths")
    if len(tags) != len(paths):
        raise InputError(f"there are {len(paths)} images but {len(tags)} entries of tags; give one for each image")
    return list(tags)


def _path(value: object, argument: str) -> Path:
    if not isinstance(value, str | Path):
        raise InputError(f"{argument} contains {shown(value)}, which is not a path")
    return Path(value)


def _names(entry: object, path: Path) -> list[str]:
    names: list[Any] | None = None
    if isinstance(entry, str):
        names = [entry]
    elif isinstance(entry, Sequence | set | frozenset):
        names = list(entry) if isinstance(entry, Sequence) else sorted(entry, key=str)  # a set has no order
    if names is None or not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f"{path}: its tags are {shown(entry)}; give a tag or a list of tags")
    return [name.strip() for name in names]
