"""Boxes go out here, one writer per format, into what the next program reads."""

import importlib
from collections.abc import Callable
from pathlib import Path

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.export.pictures import Pictures

# To add a format: a module with `write(folder, dataset, boxes, pictures)`, and a reader in `data` for the way back.
FORMATS = {
    "coco": "coco",
    "voc": "voc",
    "yolo": "yolo",
    "label-studio": "labelstudio",
    "cvat": "cvat",
    "csv": "csv_boxes",
}


Writer = Callable[[Path, Dataset, ScoredBoxes, Pictures], None]


def writer(format: str) -> Writer:
    """The function that writes a format."""
    if format not in FORMATS:
        raise InputError(f"there is no format {format!r} to export to; known are {', '.join(FORMATS)}")
    function: Writer = importlib.import_module(f"pairloc.export.{FORMATS[format]}").write
    return function


def write(format: str, folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: Path | None = None) -> None:
    """Write boxes into an existing folder; with `images` the formats that keep pictures beside them get those too."""
    writer(format)(folder, dataset, boxes, Pictures(dataset, images))
