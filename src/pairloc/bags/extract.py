"""Extraction: pictures become bags, once, shard by shard."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.features import FeatureExtractor, feature_extractor
from pairloc.bags.store import Bag, StoreWriter
from pairloc.datasets.dataset import Dataset
from pairloc.detector.propose import Seen, best_boxes, describe
from pairloc.detector.proposer import WEIGHTS, Proposer
from pairloc.detector.reading import Read, batches
from pairloc.errors import InputError
from pairloc.io import sha256
from pairloc.settings import ExtractSettings

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
    rank: int = 0,
    world: int = 1,
    track: Track = lambda shards, total: shards,
) -> bool:
    """Write the bags of a data set into a store, or go on where an earlier run stopped; whether the store is finished.

    Boxes come from the proposer; transferred features from it too, or from another proposer (`features_folder`). Class
    features are those the settings name, or come from an extractor of the caller's own, which the settings then name.
    """
    folders = {"proposer": proposer_folder, "features": features_folder or proposer_folder}
    hashes = {
        name: sha256(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else "" for name, folder in folders.items()
    }
    shared = settings.model_dump(exclude={"workers", "batch", "shard", "unreadable"})
    with StoreWriter(store, dataset, shared | hashes, shard=settings.shard, rank=rank, world=world) as writer:
        missing = writer.missing()
        if missing:
            boxer = Proposer.load(proposer_folder, device)
            describer = boxer if features_folder is None else Proposer.load(features_folder, device)
            describe_class = class_features or feature_extractor(settings.class_features, device)
            groups = [_groups(*writer.ranges[number], settings.batch) for number in missing]
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
        return writer.finish()


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
    """The bags of some pictures, and what could not be read of them."""
    complaints = [entry for entry in read.complaints if entry is not None]
    if complaints and settings.unreadable == "fail":
        raise InputError(f"{complaints[0]}; replace it, or go on without such pictures by --unreadable skip")
    pictures = read.pictures.to(device)
    found = iter(_describe(pictures, boxer, describer, class_features, settings, device) if pictures else [])
    empty = _empty(describer.settings.head, class_features.d)
    return [next(found) if entry is None else empty for entry in read.complaints], complaints


@torch.no_grad()
def _describe(
    pictures: list[Tensor],
    boxer: Proposer,
    describer: Proposer,
    class_features: FeatureExtractor,
    settings: ExtractSettings,
    device: str,
) -> list[Bag]:
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        seen = Seen(boxer.model, pictures)
        boxes = best_boxes(seen, settings.proposals, settings.nms)
        if settings.whole_image:
            boxes = [torch.cat([mine, _whole(p, mine)]) for mine, p in zip(boxes, pictures, strict=True)]
        objectness, features = describe(seen if describer is boxer else Seen(describer.model, pictures), boxes)
        extra = torch.cat(class_features(pictures, boxes))
    counts = np.cumsum([len(mine) for mine in boxes])[:-1]
    columns = [torch.cat(boxes).float(), objectness.float(), _half(features), _half(extra)]
    parts = [np.split(column.cpu().numpy(), counts) for column in columns]
    sizes = [(picture.shape[2], picture.shape[1]) for picture in pictures]
    return [Bag(*bag) for bag in zip(*parts, sizes, strict=True)]


def _whole(picture: Tensor, like: Tensor) -> Tensor:
    return like.new_tensor([[0.0, 0.0, picture.shape[2], picture.shape[1]]])


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
