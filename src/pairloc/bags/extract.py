"""Extraction: compute the bags of a data set once and store them shard by shard."""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.features import FeatureExtractor, check_class_features, feature_extractor
from pairloc.bags.store import Bag, StoreWriter
from pairloc.datasets.dataset import Dataset
from pairloc.detector.model import WEIGHTS, Proposer, check_finished
from pairloc.detector.propose import ImageFeatures, best_boxes, describe
from pairloc.detector.reading import ImageBatch, batches
from pairloc.errors import InputError
from pairloc.executors import Cluster, Executor, Serial
from pairloc.io import reason, sha256
from pairloc.platform import choose_device, mixed_precision
from pairloc.settings import ExtractSettings

_BATCH = {"cpu": 8}  # images per forward pass; 64 on a GPU
Track = Callable[[Iterable[Any], int], Iterable[Any]]


def extract(
    dataset: Dataset,
    proposer_folder: Path,
    store: Path,
    settings: ExtractSettings,
    *,
    features_folder: Path | None = None,
    class_features: FeatureExtractor | None = None,
    device: str = "cpu",
    executor: Executor | None = None,
    track: Track = lambda batches, images: batches,
) -> None:
    """Write the bags of a data set into a store; an interrupted extraction resumes with the missing shards.

    The proposer in `proposer_folder` gives the boxes and, unless `features_folder` names another proposer, the
    transferred features. `settings.class_features` names the class features; a custom extractor is passed as
    `class_features`, and the name in the settings then identifies it in the cache key. With an `executor` of several
    workers every shard is a task of its own; the workers read images and proposers themselves.

    Raises an InputError if a proposer cannot be loaded, an image cannot be read (unless `settings.unreadable` is
    "skip"), or the store belongs to other inputs.
    """
    if class_features is None:
        check_class_features(settings.class_features)
    folders = {"proposer": proposer_folder, "features": features_folder or proposer_folder}
    hashes = {name: weights_hash(folder) for name, folder in folders.items()}
    paths = [dataset.path(index) for index in range(len(dataset))]
    with StoreWriter(store, dataset, settings.cache_key() | hashes, shard=settings.shard) as writer:
        missing = writer.missing()
        ranges = [range(*writer.ranges[number]) for number in missing]
        task = ExtractShard(folders, hashes, class_features, settings, device)
        if executor is None or isinstance(executor, Serial):
            shards = _in_this_process(task, paths, ranges, track)
        else:
            parts = [[paths[index] for index in images] for images in ranges]
            shards = _by_workers(executor, task, parts, track)
        with ThreadPoolExecutor(1) as background:  # writes a shard while the next one is computed
            pending: Future[None] | None = None
            for number, (bags, unreadable) in zip(missing, shards, strict=True):
                if pending is not None:
                    pending.result()
                pending = background.submit(writer.write, number, bags, unreadable)
            if pending is not None:
                pending.result()
        writer.finish()


Shard = tuple[list[Bag], list[str]]  # the bags of its images, and the messages about unreadable ones


def _in_this_process(task: "ExtractShard", paths: list[Path], ranges: list[range], track: Track) -> Iterator[Shard]:
    """Yield the shards; images are read ahead across their borders."""
    if not ranges:
        return
    networks = task.networks()
    groups = [task.groups(images) for images in ranges]
    every_group = [group for shard in groups for group in shard]
    read = batches(paths, every_group, task.settings.workers)
    image_batches = iter(track(read, sum(map(len, every_group))))
    for shard in groups:
        yield task.joined(task.bags(next(image_batches), networks) for _ in shard)


def _by_workers(executor: Executor, task: "ExtractShard", parts: list[list[Path]], track: Track) -> Iterator[Shard]:
    """Yield the shards, each made by one worker; images count when their shard is done.

    Workers of a cluster use the GPU that it gives them.
    """
    if isinstance(executor, Cluster):
        task = replace(task, device="auto")
    shards = executor.stream(task, parts)
    for _ in track(parts, sum(map(len, parts))):
        yield next(shards)


@dataclass(frozen=True)
class ExtractShard:
    """A task: the bags of some images. A worker keeps the networks that it loaded for the shard before."""

    folders: dict[str, Path]  # of the proposers of boxes and of features
    hashes: dict[str, str]  # of their weights
    class_features: FeatureExtractor | None
    settings: ExtractSettings
    device: str
    uses_gpu: ClassVar[bool] = True

    def __call__(self, paths: Sequence[Path]) -> Shard:
        """The bags of the images in some files.

        Raises an InputError if this machine has other weights, or lacks them or an image.
        """
        task = replace(self, device=choose_device(self.device))
        key = (*task.hashes.values(), task.settings.class_features, task.device)
        if key not in _warm:
            for name, folder in self.folders.items():
                if weights_hash(folder) != self.hashes[name]:
                    raise InputError(f"{folder}: has other weights on {socket.gethostname()} than where the run began")
            _warm.clear()
            _warm[key] = task.networks()
        groups = task.groups(range(len(paths)))
        read = batches(paths, groups, 0)
        return task.joined(task.bags(batch, _warm[key]) for batch in read)

    def networks(self) -> "Networks":
        """Load the proposers and the network of class features."""
        proposer = Proposer.load(self.folders["proposer"], self.device)
        same = self.folders["features"] == self.folders["proposer"]
        features = proposer if same else Proposer.load(self.folders["features"], self.device)
        extractor = self.class_features or feature_extractor(self.settings.class_features, self.device)
        return Networks(proposer, features, extractor)

    def groups(self, images: range) -> list[list[int]]:
        """Split the images of a shard into batches."""
        size = self.settings.batch or _BATCH.get(self.device, 64)
        return [list(images[start : start + size]) for start in range(0, len(images), size)]

    def bags(self, batch: ImageBatch, networks: "Networks") -> Shard:
        """The bags of a batch, empty for unreadable images, and the error messages of those images."""
        errors = [entry for entry in batch.errors if entry is not None]
        if errors and self.settings.unreadable == "fail":
            raise InputError(f"{errors[0]}; replace the file, or skip such images with --unreadable skip")
        images = batch.images.to(self.device)
        bags = iter(_describe(images, networks, self.settings, self.device) if images else [])
        empty = _empty(networks.features.settings.head, networks.class_features.d)
        return [next(bags) if entry is None else empty for entry in batch.errors], errors

    @staticmethod
    def joined(parts: Iterable[Shard]) -> Shard:
        """One shard of the bags of its batches."""
        bags, unreadable = zip(*parts, strict=True)
        return [entry for part in bags for entry in part], [entry for part in unreadable for entry in part]


@dataclass(frozen=True)
class Networks:
    """What describes an image."""

    proposer: Proposer
    features: Proposer  # whose box head gives the transferred features
    class_features: FeatureExtractor


_warm: dict[tuple[str, ...], Networks] = {}  # what this worker loaded last


def weights_hash(folder: Path) -> str:
    """Hash the weights of a proposer, which also checks that there are some before a store is created."""
    check_finished(folder)
    try:
        return sha256(folder / WEIGHTS)
    except OSError as error:
        raise InputError(f"{folder / WEIGHTS}: cannot be read ({reason(error)})") from error


@torch.no_grad()
def _describe(images: list[Tensor], networks: Networks, settings: ExtractSettings, device: str) -> list[Bag]:
    """The bags of images (3, H, W)."""
    proposer, feature_proposer = networks.proposer, networks.features
    with mixed_precision(device, allowed=settings.precision == "auto"):
        maps = ImageFeatures(proposer.model, images)
        boxes = best_boxes(maps, settings.proposals, settings.nms)
        if settings.whole_image:
            boxes = [torch.cat([b, _whole_image(image, b)]) for b, image in zip(boxes, images, strict=True)]
        objectness, features = describe(
            maps if feature_proposer is proposer else ImageFeatures(feature_proposer.model, images), boxes
        )
        independent = torch.cat(networks.class_features(images, boxes))
    offsets = np.cumsum([len(image_boxes) for image_boxes in boxes])[:-1]
    columns = [torch.cat(boxes).float(), objectness.float(), _float16(features), _float16(independent)]
    parts = [np.split(column.cpu().numpy(), offsets) for column in columns]
    sizes = [(image.shape[2], image.shape[1]) for image in images]
    return [Bag(*bag) for bag in zip(*parts, sizes, strict=True)]


def _whole_image(image: Tensor, like: Tensor) -> Tensor:
    return like.new_tensor([[0.0, 0.0, image.shape[2], image.shape[1]]])


def _float16(features: Tensor) -> Tensor:
    limit = torch.finfo(torch.float16).max
    return features.float().clamp(-limit, limit).half()


def _empty(transfer_d: int, class_d: int) -> Bag:
    return Bag(
        np.zeros((0, 4), np.float32),
        np.zeros(0, np.float32),
        np.zeros((0, transfer_d), np.float16),
        np.zeros((0, class_d), np.float16),
        (0, 0),
    )
