"""Extraction: images become bags, once, shard by shard."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.features import FeatureExtractor, check_class_features, feature_extractor
from pairloc.bags.store import Bag, StoreWriter
from pairloc.datasets.dataset import Dataset
from pairloc.detector.model import WEIGHTS, Proposer, check_finished
from pairloc.detector.propose import ImageFeatures, best_boxes, describe
from pairloc.detector.reading import Read, batches
from pairloc.errors import InputError
from pairloc.io import reason, sha256
from pairloc.settings import ExtractSettings

_BATCH = {"cpu": 8}  # images per forward pass; GPUs take 64
Track = Callable[[Iterable[int], int], Iterable[int]]


def extract(
    dataset: Dataset,
    proposer_folder: Path,
    store: Path,
    settings: ExtractSettings,
    *,
    features_folder: Path | None = None,
    class_features: FeatureExtractor | None = None,
    device: str = "cpu",
    track: Track = lambda shards, total: shards,
) -> None:
    """Write the bags of a data set into a store, or go on where an earlier run stopped.

    Boxes come from the proposer; transferred features from it too, or from another proposer (`features_folder`). Class
    features are those the settings name, or come from an extractor of the caller's own, which the settings then name.
    """
    if class_features is None:
        check_class_features(settings.class_features)
    folders = {"proposer": proposer_folder, "features": features_folder or proposer_folder}
    hashes = {name: _weights_hash(folder) for name, folder in folders.items()}
    with StoreWriter(store, dataset, settings.cache_key() | hashes, shard=settings.shard) as writer:
        missing = writer.missing()
        if missing:
            boxer = Proposer.load(proposer_folder, device)
            describer = boxer if features_folder is None else Proposer.load(features_folder, device)
            describe_class = class_features or feature_extractor(settings.class_features, device)
            groups = [_groups(*writer.ranges[number], settings.batch or _BATCH.get(device, 64)) for number in missing]
            paths = [dataset.path(index) for index in range(len(dataset))]
            read = batches(paths, [group for shard in groups for group in shard], settings.workers)
            with ThreadPoolExecutor(1) as background:  # a shard is written while the next is made
                written: Future[None] | None = None
                for number, shard in zip(track(missing, len(missing)), groups, strict=True):
                    made = [_bags(next(read), boxer, describer, describe_class, settings, device) for _ in shard]
                    if written is not None:
                        written.result()
                    bags, unreadable = (
                        [entry for part in parts for entry in part] for parts in zip(*made, strict=True)
                    )
                    written = background.submit(writer.write, number, bags, unreadable)
                if written is not None:
                    written.result()
        writer.finish()


def _weights_hash(folder: Path) -> str:
    """The hash of a proposer's weights; a folder without any is refused before there is a store."""
    check_finished(folder)
    try:
        return sha256(folder / WEIGHTS)
    except OSError as error:
        raise InputError(f"{folder / WEIGHTS}: cannot be read ({reason(error)})") from error


def _groups(first: int, last: int, size: int) -> list[list[int]]:
    """The images of a shard, some at a time."""
    return [list(range(start, min(start + size, last))) for start in range(first, last, size)]


def _bags(
    read: Read,
    boxer: Proposer,
    describer: Proposer,
    class_features: FeatureExtractor,
    settings: ExtractSettings,
    device: str,
) -> tuple[list[Bag], list[str]]:
    """The bags of some images, and what could not be read of them."""
    complaints = [entry for entry in read.complaints if entry is not None]
    if complaints and settings.unreadable == "fail":
        raise InputError(f"{complaints[0]}; replace it, or go on without such images by --unreadable skip")
    images = read.images.to(device)
    found = iter(_describe(images, boxer, describer, class_features, settings, device) if images else [])
    empty = _empty(describer.settings.head, class_features.d)
    return [next(found) if entry is None else empty for entry in read.complaints], complaints


@torch.no_grad()
def _describe(
    images: list[Tensor],
    boxer: Proposer,
    describer: Proposer,
    class_features: FeatureExtractor,
    settings: ExtractSettings,
    device: str,
) -> list[Bag]:
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        seen = ImageFeatures(boxer.model, images)
        boxes = best_boxes(seen, settings.proposals, settings.nms)
        if settings.whole_image:
            boxes = [torch.cat([mine, _whole(p, mine)]) for mine, p in zip(boxes, images, strict=True)]
        objectness, features = describe(seen if describer is boxer else ImageFeatures(describer.model, images), boxes)
        extra = torch.cat(class_features(images, boxes))
    counts = np.cumsum([len(mine) for mine in boxes])[:-1]
    columns = [torch.cat(boxes).float(), objectness.float(), _half(features), _half(extra)]
    parts = [np.split(column.cpu().numpy(), counts) for column in columns]
    sizes = [(image.shape[2], image.shape[1]) for image in images]
    return [Bag(*bag) for bag in zip(*parts, sizes, strict=True)]


def _whole(image: Tensor, like: Tensor) -> Tensor:
    return like.new_tensor([[0.0, 0.0, image.shape[2], image.shape[1]]])


def _half(features: Tensor) -> Tensor:
    top = torch.finfo(torch.float16).max
    return features.float().clamp(-top, top).half()


def _empty(transfer: int, class_features: int) -> Bag:
    return Bag(
        np.zeros((0, 4), np.float32),
        np.zeros(0, np.float32),
        np.zeros((0, transfer), np.float16),
        np.zeros((0, class_features), np.float16),
        (0, 0),
    )
