"""The detector: the same Faster R-CNN as the proposer, trained on found boxes or on ground truth.

It finds every instance of a class, whereas localization finds one box per tag.
"""

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision.ops import clip_boxes_to_image, remove_small_boxes

from pairloc.datasets.building import images_below, is_valid_name
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.detector.model import Proposer
from pairloc.detector.propose import pad_thin
from pairloc.detector.reading import ImageBatch, batches
from pairloc.detector.training import Log, train
from pairloc.errors import InputError, shown
from pairloc.images import ImageError, read_header
from pairloc.platform import mixed_precision
from pairloc.settings import ProposerSettings

_MIN_SIDE = 0.1  # of a detected box, in pixels


def train_detector(
    dataset: Dataset,
    boxes: ScoredBoxes | GroundTruth,
    settings: ProposerSettings,
    out: Path,
    **options: Any,
) -> Proposer:
    """Train a detector on the boxes of a data set; `options` are keyword arguments of `train`.

    Raises an InputError if the settings are those of a class-agnostic proposer or hold out classes.
    """
    if settings.class_agnostic or settings.held_classes:
        raise InputError("class_agnostic and held_classes are for proposers only; remove them to train a detector")
    ignored = boxes.ignored if isinstance(boxes, GroundTruth) else np.zeros(len(boxes), dtype=np.bool_)
    truth = GroundTruth(boxes.image, boxes.label, boxes.boxes, ignored)
    return train(dataset, truth, settings, out, **options)


def held_out_mask(dataset: Dataset, one_in: int) -> npt.NDArray[np.bool_]:
    """Choose the images to hold out, about one in `one_in`: a mask (N,).

    The choice depends on the hash of the file name only, so it is the same for every file that lists the image.
    """
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
    track: Callable[[Iterable[ImageBatch], int], Iterable[ImageBatch]] = lambda batches, images: batches,
) -> ScoredBoxes:
    """Detect objects: boxes with a score of at least `least`, at most `most` per image, after NMS within each class.

    The default of `least` is low because average precision needs boxes of every score. An image that cannot be read
    raises an InputError; with `unreadable`, that function gets its index and the error instead, and it has no boxes.
    """
    if detector.settings.class_agnostic:
        raise InputError(
            "a class-agnostic proposer cannot be used as a detector; train one with class_agnostic = false"
        )
    model = detector.model
    model.roi_heads.score_thresh, model.roi_heads.detections_per_img = least, most
    groups = [list(range(a, min(a + batch, len(dataset)))) for a in range(0, len(dataset), batch)]
    paths = [dataset.path(index) for index in range(len(dataset))]
    columns: list[list[np.ndarray[Any, Any]]] = [[], [], [], []]
    for group, read in zip(groups, track(batches(paths, groups, workers), len(dataset)), strict=True):
        images = (read.require_all() if unreadable is None else read.images).to(device)
        readable = []
        for index, error in zip(group, read.errors, strict=True):
            if error is None:
                readable.append(index)
            elif unreadable is not None:
                unreadable(index, error)
        with mixed_precision(device):
            detections = model([pad_thin(image) for image in images]) if images else []
        for index, image, entry in zip(readable, images, detections, strict=True):
            boxes = clip_boxes_to_image(entry["boxes"], (image.shape[1], image.shape[2]))
            kept = remove_small_boxes(boxes, _MIN_SIDE)  # drops boxes in the padding of thin images
            label = entry["labels"][kept].cpu().numpy() - 1
            parts = (np.full(len(kept), index), label, boxes[kept], entry["scores"][kept])
            for column, part in zip(columns, parts, strict=True):
                column.append(part if isinstance(part, np.ndarray) else part.double().cpu().numpy())
    image_index, labels, corners, score = (np.concatenate(column) if column else np.zeros(0) for column in columns)
    return ScoredBoxes(image_index.astype(np.int64), labels.astype(np.int64), corners.reshape(-1, 4), score)


def detect_below(detector: Proposer, folder: Path, log: Log, **options: Any) -> tuple[Dataset, ScoredBoxes]:
    """Detect objects in all images below a folder; images that cannot be used are logged and left out.

    `options` are keyword arguments of `detect`. Raises an InputError if no image can be read.
    """
    files = images_below(folder) if folder.is_dir() else []
    images: list[Image] = []
    for file in files:
        if not is_valid_name(file):
            log(f"left out: {shown(file)}: its name is not valid text; rename it")
            continue
        try:
            images.append(Image(len(images) + 1, file, read_header(folder / file).size))
        except ImageError as error:
            log(f"left out: {folder / file}: {error}")
    damaged: dict[int, str] = {}
    dataset = Dataset(tuple(images), detector.classes, ((),) * len(images), folder=folder)
    found = detect(detector, dataset, unreadable=damaged.__setitem__, **options)
    for problem in damaged.values():
        log(f"left out: {problem}")
    kept = [index for index in range(len(dataset)) if index not in damaged]
    if not kept:
        raise InputError(f"{folder}: holds no image that can be read")
    new_index = np.full(len(dataset), -1)
    new_index[kept] = np.arange(len(kept))
    return dataset.subset(kept), ScoredBoxes(new_index[found.image], found.label, found.boxes, found.score.round(4))


def relabelled(found: ScoredBoxes, classes: tuple[str, ...], dataset: Dataset) -> ScoredBoxes:
    """Convert labels from indices into `classes` to indices into `dataset.classes`; drop boxes of other classes."""
    class_index = {name: index for index, name in enumerate(dataset.classes)}
    label = np.array([class_index.get(name, -1) for name in classes], dtype=np.int64)[found.label]
    kept = label >= 0
    return ScoredBoxes(found.image[kept], label[kept], found.boxes[kept], found.score[kept])
