"""The masks of boxes as the page draws them: paths of SVG on a coarse grid."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from pairloc.boxes import Bools
from pairloc.datasets.dataset import Dataset
from pairloc.errors import InputError, shown
from pairloc.formats.rle import decode
from pairloc.io import read_model

FILE = "masks.json"
_SIDE = 160  # maximum number of cells of the longer side of the grid
_MOST_PIXELS = 200_000_000  # of a mask; Pillow refuses larger images


class Outline(NamedTuple):
    """A mask as a path of SVG, in cells of a grid over the image."""

    path: str
    grid: tuple[int, int]  # columns, rows


class _Rle(BaseModel):
    model_config = ConfigDict(frozen=True)
    size: tuple[int, int]  # height, width
    counts: str


class _Annotation(BaseModel):
    model_config = ConfigDict(frozen=True)
    image_id: int | str
    category_id: int
    segmentation: _Rle | None = None


class _File(BaseModel):
    model_config = ConfigDict(frozen=True)
    annotations: tuple[_Annotation, ...]


def read_outlines(folder: Path, run: Dataset, dataset: Dataset) -> dict[tuple[int, int], Outline]:
    """Read the masks of a method's boxes by (image, class) of `dataset`; none if the method wrote none.

    The folder's ids are those of `run`, the tagged images of its run. Raises an InputError if the file is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        return {}
    ids = [image.id for image in run.images]
    index = {id: position for id, position in zip(ids, dataset.indices_of(run), strict=True) if position is not None}
    names = {name: label for label, name in enumerate(dataset.classes)}
    labels = {id: names[name] for id, name in zip(run.class_ids, run.classes, strict=True) if name in names}
    outlines = {}
    for row, entry in enumerate(read_model(file, _File).annotations):
        if entry.segmentation is None or entry.image_id not in index or entry.category_id not in labels:
            continue
        height, width = entry.segmentation.size
        if not (height > 0 and width > 0 and height * width <= _MOST_PIXELS):
            raise InputError(f"{file}: annotations[{row}] has a mask of {shown(width)} x {shown(height)} pixels")
        mask = decode(entry.segmentation.counts, height, width)
        outlines[index[entry.image_id], labels[entry.category_id]] = outline(mask)
    return outlines


def outline(mask: Bools) -> Outline:
    """Draw a mask (h, w) as runs of cells, one rectangle each."""
    height, width = mask.shape
    scale = max(1.0, max(height, width) / _SIDE)
    rows, columns = (np.arange(max(1, round(side / scale))) for side in (height, width))
    y = ((rows + 0.5) * height / len(rows)).astype(int)
    x = ((columns + 0.5) * width / len(columns)).astype(int)
    cells = np.pad(mask[y][:, x], ((0, 0), (1, 1))).astype(np.int8)
    edges = np.diff(cells, axis=1)  # 1 where a run starts, -1 after its end
    starts, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    runs = zip(starts.tolist(), ends[:, 1].tolist(), strict=True)
    return Outline("".join(f"M{x} {y}h{end - x}v1h{x - end}z" for (y, x), end in runs), (len(columns), len(rows)))
