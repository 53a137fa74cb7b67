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
from torchvision.ops import clip_boxes_to_image

from pairloc.bags.pictures import Read, batches
from pairloc.bags.propose import not_too_thin
from pairloc.bags.proposer import Proposer, Say, train
from pairloc.config import ProposerSettings
from pairloc.data.dataset import Dataset
from pairloc.data.groundtruth import GroundTruth
from pairloc.data.scored import ScoredBoxes
from pairloc.errors import InputError


def train_detector(
    dataset: Dataset,
    boxes: ScoredBoxes | GroundTruth,
    settings: ProposerSettings,
    out: Path,
    *,
    start: Proposer | None = None,
    device: str = "cpu",
    say: Say = lambda line: None,
    writer: Any = None,
    resumable: bool = True,
) -> Proposer:
    """Train on the boxes of a data set; goes on after the last epoch that `out` holds."""
    if settings.class_agnostic or settings.held_classes:
        raise InputError("a detector tells classes apart: class_agnostic and held_classes are for proposers")
    ignored = boxes.ignored if isinstance(boxes, GroundTruth) else np.zeros(len(boxes), dtype=np.bool_)
    truth = GroundTruth(boxes.image, boxes.label, boxes.boxes, ignored)
    return train(dataset, truth, settings, out, start=start, device=device, say=say, writer=writer, resumable=resumable)


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
    unreadable: Say | None = None,
    track: Callable[[Iterable[Read], int], Iterable[Read]] = lambda items, total: items,
) -> ScoredBoxes:
    """The boxes of every picture that score at least `least`, at most `most` a picture, after NMS in each class.

    Average precision asks for boxes of every score, so `least` is low. A picture that cannot be read is an error, or,
    where `unreadable` is given, told to it and left without boxes.
    """
    model = detector.model
    model.roi_heads.score_thresh, model.roi_heads.detections_per_img = least, most
    groups = [list(range(a, min(a + batch, len(dataset)))) for a in range(0, len(dataset), batch)]
    paths = [dataset.path(index) for index in range(len(dataset))]
    columns: list[list[np.ndarray[Any, Any]]] = [[], [], [], []]
    for group, read in zip(groups, track(batches(paths, groups, workers), len(groups)), strict=True):
        pictures = (read.every() if unreadable is None else read.pictures).to(device)
        seen = [index for index, complaint in zip(group, read.complaints, strict=True) if complaint is None]
        for complaint in filter(None, read.complaints):
            assert unreadable is not None
            unreadable(complaint)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            found = model([not_too_thin(picture) for picture in pictures]) if pictures else []
        for index, picture, entry in zip(seen, pictures, found, strict=True):
            count = len(entry["labels"])
            boxes = clip_boxes_to_image(entry["boxes"], (picture.shape[1], picture.shape[2]))
            parts = (np.full(count, index), entry["labels"].cpu().numpy() - 1, boxes, entry["scores"])
            for column, part in zip(columns, parts, strict=True):
                column.append(part if isinstance(part, np.ndarray) else part.double().cpu().numpy())
    image, label, corners, score = (np.concatenate(column) if column else np.zeros(0) for column in columns)
    return ScoredBoxes(image.astype(np.int64), label.astype(np.int64), corners.reshape(-1, 4), score)


def relabelled(found: ScoredBoxes, classes: tuple[str, ...], dataset: Dataset) -> ScoredBoxes:
    """Boxes of a detector's classes under the indices of a data set's; those of other classes are left out."""
    place = {name: index for index, name in enumerate(dataset.classes)}
    label = np.array([place.get(name, -1) for name in classes], dtype=np.int64)[found.label]
    kept = label >= 0
    return ScoredBoxes(found.image[kept], label[kept], found.boxes[kept], found.score[kept])
