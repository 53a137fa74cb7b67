"""The method `snapped`: boxes moved to the edges of masks, part by part, so that an interrupted call resumes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor

from pairloc.boxes import Bools, Size, iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.detector.reading import batches
from pairloc.errors import InputError
from pairloc.formats.coco import Segmentation, to_coco
from pairloc.formats.rle import encode
from pairloc.io import read_model, write_json
from pairloc.localization.alternate import Log, silent
from pairloc.progress import track
from pairloc.refinement.masks import main_parts
from pairloc.refinement.mobilesam import MobileSam, check_installed
from pairloc.refinement.snapping import Segmenter, snap
from pairloc.settings import SnapSettings

_PART = 64  # images per part
_DIGITS = 2  # after the point, as in boxes.json


@dataclass(frozen=True)
class Snapped:
    """Boxes after snapping: those that moved have a mask, if masks were asked for."""

    boxes: ScoredBoxes
    moved: Bools  # (n,)
    masks: tuple[Segmentation | None, ...]  # n


class Part(BaseModel):
    """The boxes of some images, as saved until all are done."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    rows: tuple[int, ...]  # n indices of boxes
    boxes: tuple[tuple[float, float, float, float], ...]
    moved: tuple[bool, ...]
    masks: tuple[Segmentation | None, ...] = ()

    @model_validator(mode="after")
    def _aligned(self) -> "Part":
        columns = (self.boxes, self.moved, *((self.masks,) if self.masks else ()))
        if any(len(column) != len(self.rows) for column in columns):
            raise ValueError("the columns have different lengths")
        return self


def load_segmenter(settings: SnapSettings, device: str) -> MobileSam:
    """Load the segmenter; raises an InputError if it is not installed or its weights are not the official ones."""
    return MobileSam.load(settings.weights, device)


def check_segmenter(settings: SnapSettings) -> None:
    """Raise an InputError, before any work, if the segmenter cannot be used."""
    check_installed(settings.weights)


def snap_boxes(
    dataset: Dataset,
    boxes: ScoredBoxes,
    segmenter: Segmenter,
    settings: SnapSettings,
    folder: Path,
    *,
    device: str = "cpu",
    log: Log = silent,
) -> Snapped:
    """Move the boxes of all images to the edges of their masks.

    Finished parts are saved in `folder`; an interrupted call resumes after them. Boxes of an image that cannot be read
    stay.
    """
    rows_of: dict[int, list[int]] = {}
    for row, image in enumerate(boxes.image.tolist()):
        rows_of.setdefault(image, []).append(row)
    images = sorted(rows_of)
    groups = [images[start : start + _PART] for start in range(0, len(images), _PART)]
    files = [folder / f"part-{number:05}.json" for number in range(len(groups))]
    work = [
        (file, group)
        for file, group in zip(files, groups, strict=True)
        if not _is_finished(file, [row for image in group for row in rows_of[image]], settings)
    ]
    pending = [image for _, group in work for image in group]
    found = iter(track(_each(dataset, boxes, rows_of, pending, segmenter, settings, device), len(pending), "snapping"))
    for file, group in work:
        parts = [next(found).model_dump() for _ in group]
        write_json(file, {name: [entry for part in parts for entry in part[name]] for name in Part.model_fields})
    result = _collected(boxes, [read_model(file, Part) for file in files])
    log(f"{int(result.moved.sum())} of {len(boxes)} boxes moved to the edges of their masks")
    return result


def _is_finished(file: Path, rows: list[int], settings: SnapSettings) -> bool:
    try:
        part = read_model(file, Part) if file.is_file() else None
    except InputError:  # damaged
        return False
    return part is not None and list(part.rows) == rows and bool(part.masks) == settings.masks


def _each(
    dataset: Dataset,
    boxes: ScoredBoxes,
    rows_of: dict[int, list[int]],
    images: Sequence[int],
    segmenter: Segmenter,
    settings: SnapSettings,
    device: str,
) -> Iterator[Part]:
    """Snap the boxes of one image after the other."""
    paths = [dataset.path(index) for index in images]
    for number, batch in enumerate(batches(paths, [[index] for index in range(len(paths))], settings.workers)):
        rows = rows_of[images[number]]
        before = torch.from_numpy(boxes.boxes[rows])
        read = batch.images.to(device)
        after, moved = before, torch.zeros(len(rows), dtype=torch.bool)
        outlines: list[Segmentation | None] = [None] * len(rows) if settings.masks else []
        if read:
            masks = segmenter(read[0], before.float().to(device))
            after, moved = snap(before, masks, settings)
            if settings.masks:
                shown = main_parts(masks.masks).cpu()
                facts = torch.stack([masks.quality.cpu(), masks.stability.cpu(), _overlaps(before, after)]).T
                outlines = [
                    segmentation(mask, masks.size, *trust) if has else None
                    for mask, has, trust in zip(shown, moved.tolist(), facts.tolist(), strict=True)
                ]
        yield Part(
            rows=tuple(rows),
            boxes=tuple(tuple(round(value, _DIGITS) for value in box) for box in after.tolist()),
            moved=tuple(moved.tolist()),
            masks=tuple(outlines),
        )


def _collected(before: ScoredBoxes, parts: Sequence[Part]) -> Snapped:
    corners, moved = before.boxes.copy(), np.zeros(len(before), dtype=np.bool_)
    masks: list[Segmentation | None] = [None] * len(before)
    for part in parts:
        rows = list(part.rows)
        moved[rows] = part.moved
        for row, box, has, mask in zip(rows, part.boxes, part.moved, part.masks or [None] * len(rows), strict=True):
            if has:  # a box that stays keeps all its digits
                corners[row], masks[row] = box, mask
    return Snapped(replace(before, boxes=corners), moved, tuple(masks))


def _overlaps(before: Tensor, after: Tensor) -> Tensor:
    """IoU of every box (n, 4) with the one it became: (n,)."""
    return iou(before[:, None], after[:, None])[:, 0, 0].float()


def segmentation(mask: Tensor, size: Size, quality: float, stability: float, overlap: float) -> Segmentation:
    """A mask (h, w) as a COCO segmentation of an image of (width, height) pixels: a run-length encoding."""
    width, height = size
    rows = (torch.arange(height) * mask.shape[0] + mask.shape[0] // 2) // height
    columns = (torch.arange(width) * mask.shape[1] + mask.shape[1] // 2) // width
    pixels = mask[rows.clamp(max=mask.shape[0] - 1)][:, columns.clamp(max=mask.shape[1] - 1)]
    return Segmentation(
        size=(height, width), counts=encode(pixels.numpy()), area=int(pixels.sum()),
        quality=round(quality, _DIGITS), stability=round(stability, _DIGITS), overlap=round(overlap, _DIGITS),
    )  # fmt: skip


def write_masks(file: Path, dataset: Dataset, snapped: Snapped) -> None:
    """Write boxes with their masks as COCO JSON; a box that did not move has none."""
    found = snapped.boxes
    content = to_coco(
        dataset, found.image, found.label, found.boxes, score=found.score, masks=snapped.masks,
        description="boxes and masks found by pairloc",
    )  # fmt: skip
    write_json(file, content)
