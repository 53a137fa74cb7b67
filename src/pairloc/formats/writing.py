"""`write`: save boxes in any writable format; helpers that the formats share."""

import math
from collections import defaultdict
from pathlib import Path, PurePosixPath

from pairloc.boxes import Size
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.formats.reading import FORMATS, module
from pairloc.images import ImageError, read_header
from pairloc.io import copy_file


def write(format: str, folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: Path | None = None) -> None:
    """Write boxes to a folder; `images` is the image folder, for formats that store images next to the labels.

    Raises an InputError if the format cannot be written, or an image or its size is missing.
    """
    check_writable(format)
    module(format).write(folder, dataset, boxes, ImageFiles(dataset, images))


def check_writable(format: str) -> None:
    """Raise an InputError if a format is unknown or cannot be written."""
    if format not in (formats := writable_formats()):
        raise InputError(f"there is no format {format!r} to export to; choose one of {', '.join(formats)}")


def writable_formats() -> list[str]:
    """The keys of FORMATS whose module has `write`."""
    return [format for format in FORMATS if hasattr(module(format), "write")]


class ImageFiles:
    """The image files of a data set; `images` is their folder, None if they are not to be copied."""

    def __init__(self, dataset: Dataset, images: Path | None) -> None:
        self._dataset = dataset
        self._images = images
        self._folder = images or dataset.folder

    def size(self, index: int) -> Size:
        """(width, height) of an image, from the annotations or, if they lack it, from the image file."""
        image = self._dataset.images[index]
        if image.size is not None:
            return image.size
        if self._folder is None:
            raise InputError(f"{image.file}: its size is unknown; pass the image folder with --images")
        try:
            return read_header(self._folder / image.file).size
        except ImageError as error:
            raise InputError(f"{self._folder / image.file}: {error}; this format needs its size") from error

    def copy_to(self, folder: Path) -> None:
        """Copy the images to a folder, if the user passed an image folder."""
        if self._images is None:
            return
        for image in self._dataset.images:
            source = self._images / image.file
            if not source.is_file():
                raise InputError(f"{source}: the image does not exist; check --images")
            copy_file(source, folder / image.file)


def by_image(dataset: Dataset, boxes: ScoredBoxes) -> list[list[int]]:
    """For every image, the rows of its boxes."""
    rows = defaultdict(list)
    for row, image in enumerate(boxes.image.tolist()):
        rows[image].append(row)
    return [rows[index] for index in range(len(dataset))]


def stems(dataset: Dataset) -> list[str]:
    """The image names without suffix, for formats with one label file per image.

    Raises an InputError if two images have the same stem.
    """
    names = [PurePosixPath(image.file).with_suffix("").as_posix() for image in dataset.images]
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if (first := seen.setdefault(name, index)) != index:
            files = f"{dataset.images[first].file!r} and {dataset.images[index].file!r}"
            raise InputError(f"{files} would share one label file; rename one of them")
    return names


def has_score(score: float) -> bool:
    """Whether a box has a score; NaN means that it has none."""
    return not math.isnan(score)
