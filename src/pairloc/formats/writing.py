"""`write`: boxes in any format that is written, and what the formats need for it of the images."""

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
    """Write boxes into a folder; with `images` the formats that keep images beside the labels get those too."""
    writable(format)
    module(format).write(folder, dataset, boxes, ImageFiles(dataset, images))


def writable(format: str) -> None:
    """Raise an InputError where a format is not known or not written."""
    if format not in (known := writable_formats()):
        raise InputError(f"there is no format {format!r} to export to; known are {', '.join(known)}")


def writable_formats() -> list[str]:
    """Those of FORMATS whose module has `write`."""
    return [format for format in FORMATS if hasattr(module(format), "write")]


class ImageFiles:
    """The image files of a data set; `images` is their folder where the user wants them to go along."""

    def __init__(self, dataset: Dataset, images: Path | None) -> None:
        self._dataset = dataset
        self._images = images
        self._folder = images or dataset.folder

    def size(self, index: int) -> Size:
        """(width, height) of an image, from the annotations or else from its file."""
        image = self._dataset.images[index]
        if image.size is not None:
            return image.size
        if self._folder is None:
            raise InputError(f"{image.file}: its size is not known; name the image folder with --images")
        try:
            return read_header(self._folder / image.file).size
        except ImageError as error:
            raise InputError(f"{self._folder / image.file}: {error}; its size is needed") from error

    def copy_to(self, folder: Path) -> None:
        """Put the images into a folder, where the user wants them to go along."""
        if self._images is None:
            return
        for image in self._dataset.images:
            source = self._images / image.file
            if not source.is_file():
                raise InputError(f"{source}: the image is not there")
            copy_file(source, folder / image.file)


def by_image(dataset: Dataset, boxes: ScoredBoxes) -> list[list[int]]:
    """For every image the rows of its boxes."""
    rows = defaultdict(list)
    for row, image in enumerate(boxes.image.tolist()):
        rows[image].append(row)
    return [rows[index] for index in range(len(dataset))]


def stems(dataset: Dataset) -> list[str]:
    """The images' names without endings, for formats with a file per image; two of one stem are an error."""
    names = [PurePosixPath(image.file).with_suffix("").as_posix() for image in dataset.images]
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if (first := seen.setdefault(name, index)) != index:
            files = f"{dataset.images[first].file!r} and {dataset.images[index].file!r}"
            raise InputError(f"{files} would share one label file; rename one of them")
    return names


def has_score(score: float) -> bool:
    """Whether a box came with a score (NaN says it did not)."""
    return not math.isnan(score)
