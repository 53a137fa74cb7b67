"""Training: Faster R-CNN learns the boxes of a source, or of a target once they are found."""

import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN

from pairloc.boxes import covered
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.checkpoint import Checkpoint
from pairloc.detector.model import Proposer, build, on_device
from pairloc.detector.propose import propose
from pairloc.detector.reading import batches
from pairloc.detector.samples import Samples, TrainingBatch
from pairloc.errors import InputError
from pairloc.io import read_text, refuse_links, refuse_other_work, write_text
from pairloc.settings import ProposerSettings

Log = Callable[[str], None]
CURVES = "curves.jsonl"
_WEIGHT_DECAY = 1e-4
_CLIP = 10.0  # norm of the gradient
_MEASURED = 1000  # held-out images recall is measured on


class ScalarWriter(Protocol):
    """Takes curves, as TensorBoard's SummaryWriter does."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> None:
        """Take a value of a curve."""


def claim_training(folder: Path) -> None:
    """Refuse a folder that holds anything but a training, begun or finished, and links in it."""

    def is_training(there: Path) -> bool:
        return (there / CURVES).is_file() or {entry.name for entry in there.iterdir()} <= {"tensorboard"}

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
) -> Proposer:
    """Train on a source; goes on after the last epoch `out` holds. Curves go to `out/curves.jsonl` and `writer`.

    With `start` all but the last layer begins as it is there, and stays so but for the box head if `settings.frozen`.
    """
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    chosen, held = held_out(dataset, truth, settings)
    taught, asked = held_classes(dataset, truth, settings)
    model = build(settings, len(dataset.classes))
    if start is not None:
        _begin_as(model, start)
    elif settings.frozen:
        raise InputError("frozen: there are no weights to start from that could stay as they are")
    for part in (model.backbone, model.rpn) if settings.frozen else ():
        part.requires_grad_(False)
    model = on_device(model, device)
    samples = Samples(dataset, taught, chosen, settings)
    optimizer = _optimizer(model, settings)
    checkpoint = Checkpoint(out, settings, dataset, taught, chosen)
    first = checkpoint.resume(model, optimizer, device)
    curves = _curves(out / CURVES, first)
    batches_of_epochs = samples.batches(first)
    for epoch in range(first, settings.epochs):
        began = time.perf_counter()
        torch.manual_seed(settings.seed + epoch)
        losses = _epoch(model, batches_of_epochs, samples.steps, optimizer, settings, epoch, device)
        seconds = time.perf_counter() - began
        row: dict[str, float] = {"epoch": epoch + 1, "images/s": len(samples) / seconds, **losses}
        if held:
            row |= _recall(model, dataset, asked, held[:_MEASURED], settings.workers, device)
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


def _begin_as(model: FasterRCNN, start: Proposer) -> None:
    """Take over the weights of another proposer, but for the layer that names classes."""
    own = model.state_dict()
    given = {n: t.to(own[n].dtype) for n, t in start.model.state_dict().items() if "box_predictor" not in n}
    if any(name not in own or own[name].shape != tensor.shape for name, tensor in given.items()):
        raise InputError("the proposer to start from is built otherwise: backbone, pyramid, roi and head must be equal")
    model.load_state_dict(own | given)


def _optimizer(model: FasterRCNN, settings: ProposerSettings) -> torch.optim.Optimizer:
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(learning, settings.lr, weight_decay=_WEIGHT_DECAY)
    return torch.optim.SGD(learning, settings.lr, momentum=0.9, weight_decay=_WEIGHT_DECAY, nesterov=True)


def rate(step: int, steps: int, settings: ProposerSettings) -> float:
    """The part of the learning rate at a step: a linear rise, then a cosine down to zero."""
    if step < settings.warm_up:
        return (step + 1) / (settings.warm_up + 1)
    return 0.5 * (1 + math.cos(math.pi * min(step / max(steps, 1), 1)))


def _curves(file: Path, done: int) -> list[str]:
    """The lines of the epochs done; what an epoch that did not end wrote after them is left out."""
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
    """One pass over the images; the mean of every loss."""
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
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * rate(epoch * steps + step, settings.epochs * steps, settings)
        optimizer.step()
        for name, value in losses.items():
            sums[name] = sums.get(name, 0.0) + value.detach().float()
        if step % 50 == 0 or step == steps - 1:  # a look at the numbers makes the GPU wait
            _check_finite(sums, epoch, step)
    return {name: float(value) / steps for name, value in sums.items()}


def _check_finite(sums: dict[str, Tensor | float], epoch: int, step: int) -> None:
    if not all(math.isfinite(float(value)) for value in sums.values()):
        raise InputError(f"the loss is not finite in epoch {epoch + 1}, batch {step + 1}; lower the learning rate")


def freeze_statistics(model: nn.Module) -> None:
    """TrainingBatch norm keeps its ImageNet statistics: detection batches are too small for their own."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.eval()


def held_out(dataset: Dataset, truth: GroundTruth, settings: ProposerSettings) -> tuple[list[int], list[int]]:
    """Images with a box to train on, and those the proposer never sees: recall is measured on some of them."""
    with_box = np.unique(truth.image[~truth.ignored])
    if not len(with_box):
        raise InputError("there is no box to train a proposer on")
    shuffled = np.random.default_rng(settings.seed).permutation(with_box)
    count = int(len(shuffled) * settings.held_out)
    return sorted(shuffled[count:].tolist()), shuffled[:count].tolist()


def for_transfer(dataset: Dataset, truth: GroundTruth, settings: ProposerSettings, most: int) -> list[int]:
    """At most so many images to learn the transfer scores from: ones the proposer never saw, where those are many.

    Features of images it was trained on look better than those of new ones; with less than a tenth held out there are
    too few new ones, and all images with a box are drawn from.
    """
    seen, unseen = held_out(dataset, truth, settings)
    enough = settings.held_out >= 0.1 and len(unseen) >= 20
    chosen = unseen if enough else sorted([*seen, *unseen])
    return sorted(np.random.default_rng(settings.seed).permutation(chosen)[:most].tolist())


def held_classes(dataset: Dataset, truth: GroundTruth, settings: ProposerSettings) -> tuple[GroundTruth, GroundTruth]:
    """The boxes to teach and the boxes to measure recall on: the same, or those of different classes."""
    if not settings.held_classes:
        return truth, truth
    if settings.held_classes >= len(dataset.classes):
        raise InputError(f"{settings.held_classes} of {len(dataset.classes)} classes held out leave none to learn")
    drawn = np.random.default_rng(settings.seed).permutation(len(dataset.classes))[: settings.held_classes]
    held = np.isin(truth.label, drawn)
    return truth.where(~held), truth.where(held)


@torch.no_grad()
def _recall(
    model: FasterRCNN, dataset: Dataset, truth: GroundTruth, held: list[int], workers: int, device: str
) -> dict[str, float]:
    """Recall of 100 proposals on held-out source images."""
    model.eval()
    groups = [held[start : start + 16] for start in range(0, len(held), 16)]
    paths = [dataset.path(index) for index in range(len(dataset))]
    best = []
    for some, read in zip(groups, batches(paths, groups, workers), strict=True):
        for index, proposals in zip(some, propose(model, read.every().to(device), 100, 0.7), strict=True):
            own = truth.of_image(index)
            best.append(covered(proposals.double().cpu().numpy(), own.boxes[~own.ignored]))
    overlaps = np.concatenate(best)
    return {f"recall@{iou}": float((overlaps >= iou).mean()) for iou in (0.5, 0.7)} if len(overlaps) else {}
