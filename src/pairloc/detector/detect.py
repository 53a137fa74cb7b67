"""The detector: torchvision's Faster R-CNN, as the proposer is, trained on found boxes or on the truth.

It finds all instances of a class, which one box per image cannot.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision.ops import clip_boxes_to_image, remove_small_boxes

from pairloc.datasets.building import images_below, is_text
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.detector.model import Proposer
from pairloc.detector.propose import not_too_thin
from pairloc.detector.reading import Read, batches
from pairloc.detector.training import Log, ScalarWriter, train
from pairloc.errors import InputError, shown
from pairloc.images import ImageError, read_header
from pairloc.settings import ProposerSettings

_LEAST_SIDE = 0.1  # px of a box


def train_detector(
    dataset: Dataset,
    boxes: ScoredBoxes | GroundTruth,
    settings: ProposerSettings,
    out: Path,
    *,
    start: Proposer | None = None,
    device: str = "cpu",
    log: Log = lambda line: None,
    writer: ScalarWriter | None = None,
    resumable: bool = True,
) -> Proposer:
    """Train on the boxes of a data set; goes on after the last epoch that `out` holds."""
    if settings.class_agnostic or settings.held_classes:
        raise InputError("a detector tells classes apart: class_agnostic and held_classes are for proposers")
    ignored = boxes.ignored if isinstance(boxes, GroundTruth) else np.zeros(len(boxes), dtype=np.bool_)
    truth = GroundTruth(boxes.image, boxes.label, boxes.boxes, ignored)
    return train(dataset, truth, settings, out, start=start, device=device, log=log, writer=writer, resumable=resumable)


def held_out(dataset: Dataset, one_in: int) -> npt.NDArray[np.bool_]:
    """Whether an image is held out (N,): one in so many, by the hash of its file name, whatever file lists it."""
    hashes = (hashlib.sha256(Path(image.file).name.encode()).digest() for image in dataset.images)
    return np.array([int.from_bytes(value[:8], "big") % one_in == 0 for value in hashes], dtype=np.bool_)


@torch.no_grad()
def detect(
    detector: Proposer,
    dataset: Dataset,
    *,
    device: str = "cpu",
    batch: int = 8,
    workers: int = 0,
    least: float = 0.001,
    most: int = 100,
    unreadable: Callable[[int, str], None] | None = None,
    track: Callable[[Iterable[Read], int], Iterable[Read]] = lambda items, total: items,
) -> ScoredBoxes:
    """The boxes of every image that score at least `least`, at most `most` an image, after NMS in each class.

    Average precision asks for boxes of every score, so `least` is low. An image that cannot be read is an error, or,
    where `unreadable` is given, told to it and left without boxes.
    """
    if detector.settings.class_agnostic:
        raise InputError("a detector tells classes apart: this is a proposer that knows objects alone")
    model = detector.model
    model.roi_heads.score_thresh, model.roi_heads.detections_per_img = least, most
    groups = [list(range(a, min(a + batch, len(dataset)))) for a in range(0, len(dataset), batch)]
    paths = [dataset.path(index) for index in range(len(dataset))]
    columns: list[list[np.ndarray[Any, Any]]] = [[], [], [], []]
    for group, read in zip(groups, track(batches(paths, groups, workers), len(groups)), strict=True):
        images = (read.every() if unreadable is None else read.images).to(device)
        seen = []
        for index, complaint in zip(group, read.complaints, strict=True):
            if complaint is None:
                seen.append(index)
            elif unreadable is not None:
                unreadable(index, complaint)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            found = model([not_too_thin(image) for image in images]) if images else []
        for index, image, entry in zip(seen, images, found, strict=True):
            boxes = clip_boxes_to_image(entry["boxes"], (image.shape[1], image.shape[2]))
            kept = remove_small_boxes(boxes, _LEAST_SIDE)  # some lie beside an image that was too thin
            label = entry["labels"][kept].cpu().numpy() - 1
            parts = (np.full(len(kept), index), label, boxes[kept], entry["scores"][kept])
            for column, part in zip(columns, parts, strict=True):
                column.append(part if isinstance(part, np.ndarray) else part.double().cpu().numpy())
    places, labels, corners, score = (np.concatenate(column) if column else np.zeros(0) for column in columns)
    return ScoredBoxes(places.astype(np.int64), labels.astype(np.int64), corners.reshape(-1, 4), score)


def detect_below(
    detector: Proposer, folder: Path, log: Log, track: Callable[[Iterable[Any], int], Iterable[Any]], **options: Any
) -> tuple[Dataset, ScoredBoxes]:
    """The images below a folder and what is in them; `options` are those of `detect`. What is left out is told."""
    files = images_below(folder) if folder.is_dir() else []
    images: list[Image] = []
    for file in track(files, len(files)):
        if not is_text(file):
            log(f"left out: {shown(file)}: such a name cannot be written")
            continue
        try:
            images.append(Image(len(images) + 1, file, read_header(folder / file).size))
        except ImageError as error:
            log(f"left out: {folder / file}: {error}")
    damaged: dict[int, str] = {}
    dataset = Dataset(tuple(images), detector.classes, ((),) * len(images), folder=folder)
    found = detect(detector, dataset, unreadable=damaged.__setitem__, track=track, **options)
    for complaint in damaged.values():
        log(f"left out: {complaint}")
    kept = [index for index in range(len(dataset)) if index not in damaged]
    if not kept:
        raise InputError(f"{folder}: holds no image that can be read")
    place = np.full(len(dataset), -1)
    place[kept] = np.arange(len(kept))
    return dataset.subset(kept), ScoredBoxes(place[found.image], found.label, found.boxes, found.score.round(4))


def relabelled(found: ScoredBoxes, classes: tuple[str, ...], dataset: Dataset) -> ScoredBoxes:
    """Boxes of a detector's classes under the indices of a data set's; those of other classes are left out."""
    place = {name: index for index, name in enumerate(dataset.classes)}
    label = np.array([place.get(name, -1) for name in classes], dtype=np.int64)[found.label]
    kept = label >= 0
    return ScoredBoxes(found.image[kept], label[kept], found.boxes[kept], found.score[kept])
