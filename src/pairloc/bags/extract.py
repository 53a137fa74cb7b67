"""Extraction: compute the bags of a data set once and store them shard by shard."""

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
from pairloc.detector.reading import ImageBatch, batches
from pairloc.errors import InputError
from pairloc.io import reason, sha256
from pairloc.platform import mixed_precision
from pairloc.settings import ExtractSettings

_BATCH = {"cpu": 8}  # images per forward pass; 64 on a GPU
Track = Callable[[Iterable[ImageBatch], int], Iterable[ImageBatch]]


def extract(
    dataset: Dataset,
    proposer_folder: Path,
    store: Path,
    settings: ExtractSettings,
    *,
    features_folder: Path | None = None,
    class_features: FeatureExtractor | None = None,
    device: str = "cpu",
    track: Track = lambda batches, images: batches,
) -> None:
    """Write the bags of a data set into a store; an interrupted extraction resumes with the missing shards.

    The proposer in `proposer_folder` gives the boxes and, unless `features_folder` names another proposer, the
    transferred features. `settings.class_features` names the class features; a custom extractor is passed as
    `class_features`, and the name in the settings then identifies it in the cache key.

    Raises an InputError if a proposer cannot be loaded, an image cannot be read (unless `settings.unreadable` is
    "skip"), or the store belongs to other inputs.
    """
    if class_features is None:
        check_class_features(settings.class_features)
    folders = {"proposer": proposer_folder, "features": features_folder or proposer_folder}
    hashes = {name: _weights_hash(folder) for name, folder in folders.items()}
    with StoreWriter(store, dataset, settings.cache_key() | hashes, shard=settings.shard) as writer:
        missing = writer.missing()
        if missing:
            proposer = Proposer.load(proposer_folder, device)
            separate = features_folder is not None and features_folder != proposer_folder
            feature_proposer = Proposer.load(features_folder, device) if features_folder and separate else proposer
            extractor = class_features or feature_extractor(settings.class_features, device)
            groups = [_groups(*writer.ranges[number], settings.batch or _BATCH.get(device, 64)) for number in missing]
            paths = [dataset.path(index) for index in range(len(dataset))]
            every_group = [group for shard in groups for group in shard]
            reader = batches(paths, every_group, settings.workers)
            image_batches = iter(track(reader, sum(map(len, every_group))))
            with ThreadPoolExecutor(1) as background:  # writes a shard while the next one is computed
                pending: Future[None] | None = None
                for number, shard in zip(missing, groups, strict=True):
                    results = [
                        _bags(next(image_batches), proposer, feature_proposer, extractor, settings, device)
                        for _ in shard
                    ]
                    if pending is not None:
                        pending.result()
                    bags, unreadable = (
                        [entry for part in parts for entry in part] for parts in zip(*results, strict=True)
                    )
                    pending = background.submit(writer.write, number, bags, unreadable)
                if pending is not None:
                    pending.result()
        writer.finish()


def _weights_hash(folder: Path) -> str:
    """Hash the weights of a proposer, which also checks that there are some before a store is created."""
    check_finished(folder)
    try:
        return sha256(folder / WEIGHTS)
    except OSError as error:
        raise InputError(f"{folder / WEIGHTS}: cannot be read ({reason(error)})") from error


def _groups(first: int, last: int, size: int) -> list[list[int]]:
    """Split the image indices of a shard into batches."""
    return [list(range(start, min(start + size, last))) for start in range(first, last, size)]


def _bags(
    batch: ImageBatch,
    proposer: Proposer,
    feature_proposer: Proposer,
    class_features: FeatureExtractor,
    settings: ExtractSettings,
    device: str,
) -> tuple[list[Bag], list[str]]:
    """The bags of a batch, empty for unreadable images, and the error messages of those images."""
    errors = [entry for entry in batch.errors if entry is not None]
    if errors and settings.unreadable == "fail":
        raise InputError(f"{errors[0]}; replace the file, or skip such images with --unreadable skip")
    images = batch.images.to(device)
    bags = iter(_describe(images, proposer, feature_proposer, class_features, settings, device) if images else [])
    empty = _empty(feature_proposer.settings.head, class_features.d)
    return [next(bags) if entry is None else empty for entry in batch.errors], errors


@torch.no_grad()
def _describe(
    images: list[Tensor],
    proposer: Proposer,
    feature_proposer: Proposer,
    class_features: FeatureExtractor,
    settings: ExtractSettings,
    device: str,
) -> list[Bag]:
    """The bags of images (3, H, W)."""
    with mixed_precision(device):
        maps = ImageFeatures(proposer.model, images)
        boxes = best_boxes(maps, settings.proposals, settings.nms)
        if settings.whole_image:
            boxes = [torch.cat([b, _whole_image(image, b)]) for b, image in zip(boxes, images, strict=True)]
        objectness, features = describe(
            maps if feature_proposer is proposer else ImageFeatures(feature_proposer.model, images), boxes
        )
        independent = torch.cat(class_features(images, boxes))
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
