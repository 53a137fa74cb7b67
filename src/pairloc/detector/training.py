"""Training of Faster R-CNN on the boxes of a source, or on boxes found in a target."""

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN

from pairloc.boxes import best_iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.checkpoint import Checkpoint
from pairloc.detector.heads import add_losses
from pairloc.detector.model import Proposer, build, on_device
from pairloc.detector.propose import propose
from pairloc.detector.reading import batches
from pairloc.detector.samples import Samples, TrainingBatch
from pairloc.errors import InputError
from pairloc.io import read_text, refuse_links, refuse_other_work, write_text
from pairloc.settings import ProposerSettings

Log = Callable[[str], None]
Track = Callable[[Iterable[TrainingBatch], int], Iterable[TrainingBatch]]
CURVES = "curves.jsonl"
_WEIGHT_DECAY = 1e-4
_MAX_GRADIENT_NORM = 10.0
_RECALL_IMAGES = 1000  # held-out images to measure recall on, at most


class ScalarWriter(Protocol):
    """Receives training curves, like TensorBoard's SummaryWriter."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> None:
        """Add a value to the curve `tag`."""


def claim_training(folder: Path) -> None:
    """Raise an InputError if a folder contains anything but a training run, or symbolic links."""

    def is_training(existing: Path) -> bool:
        return (existing / CURVES).is_file() or {entry.name for entry in existing.iterdir()} <= {"tensorboard"}

    refuse_other_work(folder, is_training)
    if folder.is_dir():
        refuse_links(folder)


def train(
    dataset: Dataset,
    truth: GroundTruth,
    settings: ProposerSettings,
    out: Path,
    *,
    start: Proposer | None = None,
    device: str = "cpu",
    log: Log = lambda line: None,
    writer: ScalarWriter | None = None,
    resumable: bool = True,
    track: Track = lambda steps, total: steps,
) -> Proposer:
    """Train on annotated images and save the network in `out`; an interrupted training resumes from its checkpoint.

    Losses and recall of every epoch go to `out/curves.jsonl` and `writer`. `start` initialises all layers but the last
    one; with `settings.frozen` only the box head is then trained. `resumable=False` writes no checkpoints. `track` may
    wrap the training steps of all epochs in a progress bar.

    Raises an InputError if there is nothing to train on, if `out` holds another training, or if the loss diverges.
    """
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    train_images, held_out_images = split_images(dataset, truth, settings)
    train_boxes, recall_boxes = held_classes(dataset, truth, settings)
    model = build(settings, len(dataset.classes))
    if start is not None:
        _initialise_from(model, start)
    elif settings.frozen:
        raise InputError(
            "frozen: there are no weights to start from; name a proposer to start from, or set frozen = false"
        )
    for part in (model.backbone, model.rpn) if settings.frozen else ():
        part.requires_grad_(False)
    model = on_device(model, device)
    if settings.soft_labels or settings.contrast:
        model = add_losses(model, soft_labels=settings.soft_labels, contrast=settings.contrast)
    samples = Samples(dataset, train_boxes, train_images, settings)
    optimizer = _optimizer(model, settings)
    checkpoint = Checkpoint(out, settings, dataset, train_boxes, train_images)
    first = checkpoint.resume(model, optimizer, device)
    curves = _curves(out / CURVES, first)
    batches_of_epochs = iter(track(samples.batches(first), samples.steps * (settings.epochs - first)))
    for epoch in range(first, settings.epochs):
        start_time = time.perf_counter()
        torch.manual_seed(settings.seed + epoch)
        losses = _epoch(model, batches_of_epochs, samples.steps, optimizer, settings, epoch, device)
        seconds = time.perf_counter() - start_time
        row: dict[str, float] = {"epoch": epoch + 1, "images/s": len(samples) / seconds, **losses}
        if held_out_images:
            row |= _recall(model, dataset, recall_boxes, held_out_images[:_RECALL_IMAGES], settings.workers, device)
        log(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
        curves.append(json.dumps(row))
        write_text(out / CURVES, "\n".join(curves) + "\n")
        if writer is not None:
            for name, value in row.items():
                writer.add_scalar(f"proposer/{name}", value, epoch + 1)
        if resumable:
            checkpoint.write(model, optimizer, epoch + 1)
    proposer = Proposer(model, settings, dataset.classes)
    proposer.save(out)
    return proposer


def _initialise_from(model: FasterRCNN, start: Proposer) -> None:
    """Copy the weights of another proposer, except for the last layer, which depends on the classes."""
    state = model.state_dict()
    copied = {name: tensor for name, tensor in start.model.state_dict().items() if "box_predictor" not in name}
    if any(name not in state or state[name].shape != tensor.shape for name, tensor in copied.items()):
        raise InputError("the proposer to start from has another architecture; use its backbone, pyramid, roi and head")
    model.load_state_dict(state | {name: tensor.to(state[name].dtype) for name, tensor in copied.items()})


def _optimizer(model: FasterRCNN, settings: ProposerSettings) -> torch.optim.Optimizer:
    maps: Any = model.backbone.maps
    body = {id(parameter) for parameter in maps.parameters()}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [entry for entry in trainable if (id(entry) in body) == inside], "factor": factor}
        for inside, factor in ((True, maps.lr_factor), (False, 1.0))
    ]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, settings.lr, weight_decay=_WEIGHT_DECAY)
    return torch.optim.SGD(groups, settings.lr, momentum=0.9, weight_decay=_WEIGHT_DECAY, nesterov=True)


def lr_factor(step: int, steps: int, settings: ProposerSettings) -> float:
    """Factor of the peak learning rate at a step: linear warm-up, then a cosine down to zero."""
    if step < settings.warm_up:
        return (step + 1) / (settings.warm_up + 1)
    return 0.5 * (1 + math.cos(math.pi * min(step / max(steps, 1), 1)))


def _curves(file: Path, done: int) -> list[str]:
    """Read the lines of the `done` finished epochs and drop those of an epoch without a checkpoint."""
    return read_text(file).splitlines()[:done] if done and file.is_file() else []


def _epoch(
    model: FasterRCNN,
    batches_of_epochs: Iterator[TrainingBatch],
    steps: int,
    optimizer: torch.optim.Optimizer,
    settings: ProposerSettings,
    epoch: int,
    device: str,
) -> dict[str, float]:
    """Train for one epoch and return the mean of every loss."""
    model.train()
    freeze_statistics(model)
    sums: dict[str, Tensor | float] = {}
    for step, batch in enumerate(itertools.islice(batches_of_epochs, steps)):
        images, targets = batch.to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            losses = model(images, targets)
        total: Any = torch.stack(list(losses.values())).sum()
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRADIENT_NORM)
        for group in optimizer.param_groups:
            group["lr"] = (
                settings.lr * group["factor"] * lr_factor(epoch * steps + step, settings.epochs * steps, settings)
            )
        optimizer.step()
        for name, value in losses.items():
            sums[name] = sums.get(name, 0.0) + value.detach().float()
        if step % 50 == 0 or step == steps - 1:  # reading the values synchronises the GPU
            _check_finite(sums, epoch, step)
    return {name: float(value) / steps for name, value in sums.items()}


def _check_finite(sums: dict[str, Tensor | float], epoch: int, step: int) -> None:
    if not all(math.isfinite(float(value)) for value in sums.values()):
        raise InputError(f"the loss is not finite in epoch {epoch + 1}, batch {step + 1}; lower the learning rate")


def freeze_statistics(model: nn.Module) -> None:
    """Make batch norm keep its ImageNet statistics: detection batches are too small to estimate them."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def split_images(dataset: Dataset, truth: GroundTruth, settings: ProposerSettings) -> tuple[list[int], list[int]]:
    """Split the images with a box into training images and held-out ones, which the proposer never sees.

    Raises an InputError if there is no box.
    """
    with_box = np.unique(truth.image[~truth.ignored])
    if not len(with_box):
        raise InputError("there is no box to train a proposer on")
    shuffled = np.random.default_rng(settings.seed).permutation(with_box)
    count = int(len(shuffled) * settings.held_out)
    return sorted(shuffled[count:].tolist()), shuffled[:count].tolist()


def for_transfer(dataset: Dataset, truth: GroundTruth, settings: ProposerSettings, most: int) -> list[int]:
    """Draw at most `most` images to learn the transfer scores from, held-out ones if there are enough of them.

    The proposer's features are better on its training images than on new ones, so the scores should be learned on
    images it never saw. If less than a tenth was held out, all images with a box are used.
    """
    trained_on, unseen = split_images(dataset, truth, settings)
    enough = settings.held_out >= 0.1 and len(unseen) >= 20
    chosen = unseen if enough else sorted([*trained_on, *unseen])
    return sorted(np.random.default_rng(settings.seed).permutation(chosen)[:most].tolist())


def held_classes(dataset: Dataset, truth: GroundTruth, settings: ProposerSettings) -> tuple[GroundTruth, GroundTruth]:
    """Split the boxes into those to train on and those to measure recall on.

    Without `settings.held_classes` both are all boxes; otherwise that many classes, drawn at random, are held out.
    """
    if not settings.held_classes:
        return truth, truth
    if settings.held_classes >= len(dataset.classes):
        raise InputError(
            f"held_classes: is {settings.held_classes} of {len(dataset.classes)} classes; keep one or more for training"
        )
    drawn = np.random.default_rng(settings.seed).permutation(len(dataset.classes))[: settings.held_classes]
    is_held_out = np.isin(truth.label, drawn)
    return truth.where(~is_held_out), truth.where(is_held_out)


@torch.no_grad()
def _recall(
    model: FasterRCNN, dataset: Dataset, truth: GroundTruth, images: list[int], workers: int, device: str
) -> dict[str, float]:
    """Recall of 100 proposals per image on held-out images."""
    model.eval()
    groups = [images[start : start + 16] for start in range(0, len(images), 16)]
    paths = [dataset.path(index) for index in range(len(dataset))]
    best = []
    for group, batch in zip(groups, batches(paths, groups, workers), strict=True):
        for index, proposals in zip(group, propose(model, batch.require_all().to(device), 100, 0.7), strict=True):
            image_truth = truth.of_image(index)
            best.append(best_iou(proposals.double().cpu().numpy(), image_truth.boxes[~image_truth.ignored]))
    overlaps = np.concatenate(best)
    return {f"recall@{iou}": float((overlaps >= iou).mean()) for iou in (0.5, 0.7)} if len(overlaps) else {}
