"""The proposer: torchvision's Faster R-CNN, trained on the boxes of the source."""

import hashlib
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

from pairloc.boxes import covered
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.backbones import Maps, Pyramid
from pairloc.detector.batched import BatchedTransform, NearbyMatcher, batch_up
from pairloc.detector.propose import propose
from pairloc.detector.reading import batches
from pairloc.detector.samples import Batch, Samples
from pairloc.errors import InputError
from pairloc.io import read_json, write_json, write_tensors
from pairloc.settings import ProposerSettings
from pairloc.sharing import ALONE, Share

Say = Callable[[str], None]
_APART = 7919  # seeds of processes
_MEASURED = 1000  # held-out images recall is measured on
SETTINGS, WEIGHTS, STATE = "proposer.json", "proposer.safetensors", "training"


def build(settings: ProposerSettings, classes: int, *, pretrained: bool | None = None) -> FasterRCNN:
    """The untrained network for so many classes, background not counted."""
    maps = Maps(
        settings.backbone, pretrained=settings.pretrained if pretrained is None else pretrained, levels=settings.levels
    )
    pyramid = Pyramid(maps, settings.pyramid)
    names = [str(level) for level in range(settings.levels)]
    # two sizes of anchors half an octave apart on every level, in three shapes
    sizes = tuple(
        (settings.anchor * 2**level, round(settings.anchor * 2 ** (level + 0.5))) for level in range(settings.levels)
    )
    model = FasterRCNN(
        pyramid,
        rpn_anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * settings.levels),
        box_roi_pool=MultiScaleRoIAlign(names, output_size=settings.roi, sampling_ratio=2),
        box_head=TwoMLPHead(settings.pyramid * settings.roi**2, settings.head),
        box_predictor=FastRCNNPredictor(settings.head, (1 if settings.class_agnostic else classes) + 1),
        min_size=settings.image_size,
        max_size=settings.image_size,
        image_mean=list(maps.mean),
        image_std=list(maps.std),
        box_batch_size_per_image=settings.sampled_rois,
        rpn_pre_nms_top_n_train=300,  # a level; NMS of more takes most of a GPU's step
        rpn_post_nms_top_n_train=500,
        rpn_pre_nms_top_n_test=300,
        rpn_post_nms_top_n_test=300,
    )
    model.transform.__class__ = BatchedTransform
    matcher = model.roi_heads.proposal_matcher
    model.roi_heads.proposal_matcher = NearbyMatcher(matcher.high_threshold, matcher.low_threshold, settings.nearby)
    return model


def _on(model: FasterRCNN, device: str | torch.device) -> FasterRCNN:
    """A network on a device; on a GPU with the parts and the layout that suit it."""
    if torch.device(device).type != "cuda":
        return model.to(device)
    return batch_up(model.to(device, memory_format=torch.channels_last))


class Proposer:
    """A trained proposer with its settings and the source classes it knows."""

    def __init__(self, model: FasterRCNN, settings: ProposerSettings, classes: tuple[str, ...]) -> None:
        self.model, self.settings, self.classes = model.eval(), settings, classes

    def save(self, folder: Path) -> None:
        """Write weights and settings."""
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / WEIGHTS, self.model.state_dict())
        write_json(folder / SETTINGS, {"settings": self.settings.model_dump(), "classes": self.classes}, indent=1)

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu") -> "Proposer":
        """Read what `save` wrote."""
        content = read_json(folder / SETTINGS)
        try:
            settings = ProposerSettings.model_validate(content["settings"])
            classes = tuple(str(name) for name in content["classes"])
            model = build(settings, len(classes), pretrained=False)
            model.load_state_dict(load_file(folder / WEIGHTS))
        except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
            raise InputError(f"{folder}: does not hold a proposer ({str(error).splitlines()[0][:120]})") from error
        return cls(_on(model, device), settings, classes)


def train(
    dataset: Dataset,
    truth: GroundTruth,
    settings: ProposerSettings,
    out: Path,
    *,
    start: Proposer | None = None,
    device: str = "cpu",
    say: Say = lambda line: None,
    writer: Any = None,
    share: Share = ALONE,
    resumable: bool = True,
) -> Proposer:
    """Train on a source; resumes after the last epoch `out` holds. Curves go to `out/curves.jsonl` and `writer`.

    With `start` all but the last layer begins as it is there, and stays so but for the box head if `settings.frozen`.
    The processes of a share take a part of every batch each and train one network together; the first one writes.
    """
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    chosen, held = held_out(dataset, truth, settings)
    taught, asked = _held_classes(dataset, truth, settings)
    model = build(settings, len(dataset.classes))
    if start is not None:
        _begin_as(model, start)
    elif settings.frozen:
        raise InputError("frozen: there are no weights to start from that could stay as they are")
    for part in (model.backbone, model.rpn) if settings.frozen else ():
        part.requires_grad_(False)
    model = _on(model, device)
    samples = Samples(dataset, taught, chosen, settings)
    optimizer = _optimizer(model, settings)
    taught_key = _fingerprint(dataset, taught, chosen)
    first = _resume(out, model, optimizer, settings, taught_key, device)
    out.mkdir(parents=True, exist_ok=True)
    batches_of_epochs = samples.batches(first, share)
    network = model if share.world == 1 else nn.parallel.DistributedDataParallel(model)
    for epoch in range(first, settings.epochs):
        began = time.perf_counter()
        torch.manual_seed(settings.seed + epoch + _APART * share.rank)
        losses = _epoch(network, batches_of_epochs, samples.steps, optimizer, settings, epoch, device)
        seconds = time.perf_counter() - began
        if not share.leads:
            continue
        row: dict[str, float] = {"epoch": epoch + 1, "images/s": len(samples) / seconds, **losses}
        if held:
            row |= _recall(model, dataset, asked, held[:_MEASURED], settings.workers, device)
        say(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
        with (out / "curves.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")
        for name, value in row.items() if writer is not None else ():
            writer.add_scalar(f"proposer/{name}", value, epoch + 1)
        if resumable:
            _checkpoint(out, model, optimizer, settings, taught_key, epoch + 1)
    proposer = Proposer(model, settings, dataset.classes)
    if share.leads:
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
    """The backbone, which comes from ImageNet, may learn at a rate of its own."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    known = {id(parameter) for parameter in model.backbone.maps.parameters()}
    body = [parameter for parameter in learning if id(parameter) in known]
    rest = [parameter for parameter in learning if id(parameter) not in known]
    groups = [{"params": rest, "share": 1.0}, {"params": body, "share": settings.backbone_lr}]
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, settings.lr, weight_decay=settings.weight_decay)
    return torch.optim.SGD(groups, settings.lr, momentum=0.9, weight_decay=settings.weight_decay, nesterov=True)


def rate(step: int, steps: int, settings: ProposerSettings) -> float:
    """The share of the learning rate at a step: a linear rise, then a cosine or two steps down."""
    if step < settings.warm_up:
        return (step + 1) / (settings.warm_up + 1)
    if settings.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(step / max(steps, 1), 1)))
    return float(0.1 ** sum(step >= share * steps for share in (2 / 3, 8 / 9)))


def _epoch(
    model: nn.Module,
    batches_of_epochs: Iterator[Batch],
    steps: int,
    optimizer: torch.optim.Optimizer,
    settings: ProposerSettings,
    epoch: int,
    device: str,
) -> dict[str, float]:
    """One pass over the pictures; the mean of every loss."""
    model.train()
    freeze_statistics(model)
    sums: dict[str, Tensor | float] = {}
    for step, batch in enumerate(itertools.islice(batches_of_epochs, steps)):
        pictures, targets = batch.to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            losses = model(pictures, targets)
        total: Any = torch.stack(list(losses.values())).sum()
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        for group in optimizer.param_groups:
            group["lr"] = group["share"] * settings.lr * rate(epoch * steps + step, settings.epochs * steps, settings)
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
    """Batch norm keeps its ImageNet statistics: detection batches are too small for their own."""
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


def _held_classes(dataset: Dataset, truth: GroundTruth, settings: ProposerSettings) -> tuple[GroundTruth, GroundTruth]:
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


def _fingerprint(dataset: Dataset, truth: GroundTruth, chosen: list[int]) -> str:
    """The hash of what is taught: classes, images and boxes."""
    names = json.dumps([dataset.classes, [dataset.images[index].file for index in chosen]])
    columns = (truth.image, truth.label, truth.boxes, truth.ignored)
    return hashlib.sha256(names.encode() + b"".join(column.tobytes() for column in columns)).hexdigest()


def _checkpoint(
    out: Path,
    model: FasterRCNN,
    optimizer: torch.optim.Optimizer,
    settings: ProposerSettings,
    taught_key: str,
    epoch: int,
) -> None:
    """Write all that the next epoch needs."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for place, entry in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{place}.{name}": tensor for name, tensor in entry.items()}
    facts = {"epoch": str(epoch), "settings": settings.known_by(), "data": taught_key}
    write_tensors(out / f"{STATE}.safetensors", tensors, facts)


def _resume(
    out: Path,
    model: FasterRCNN,
    optimizer: torch.optim.Optimizer,
    settings: ProposerSettings,
    taught_key: str,
    device: str,
) -> int:
    """Take up the last epoch that was written, if the settings are the same; the number of epochs done."""
    from safetensors import safe_open

    file = out / f"{STATE}.safetensors"
    if not file.is_file():
        return 0
    with safe_open(file, framework="pt", device=device) as stored:
        facts = stored.metadata()
        if facts.get("settings") != settings.known_by():
            raise InputError(f"{out}: holds a training with other settings; name another folder, or delete this one")
        if facts.get("data") != taught_key:
            raise InputError(f"{out}: holds a training on other data; name another folder, or delete this one")
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, place, entry = name.split(".")
            state.setdefault(int(place), {})[entry] = tensor
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    return int(facts["epoch"])
