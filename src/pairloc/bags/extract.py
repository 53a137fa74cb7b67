"""Extraction: pictures become bags, once, shard by shard."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.features import FeatureExtractor, feature_extractor
from pairloc.bags.pictures import batches
from pairloc.bags.propose import Proposals, Seen, best_boxes, describe
from pairloc.bags.proposer import WEIGHTS, Proposer
from pairloc.bags.store import Bag, StoreWriter
from pairloc.config import ExtractSettings
from pairloc.data.dataset import Dataset
from pairloc.errors import InputError
from pairloc.files import sha256

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
            for number in track(missing, len(missing)):
                first, last = writer.ranges[number]
                paths = [dataset.path(index) for index in range(first, last)]
                bags, unreadable = _bags(paths, boxer, describer, describe_class, settings, device)
                writer.write(number, bags, unreadable)
        return writer.finish()


def _bags(
    paths: list[Path],
    boxer: Proposer,
    describer: Proposer,
    class_features: FeatureExtractor,
    settings: ExtractSettings,
    device: str,
) -> tuple[list[Bag], list[str]]:
    """The bags of some pictures, and what could not be read of them."""
    bags: list[Bag] = []
    unreadable: list[str] = []
    for batch in batches(paths, settings.batch, settings.workers):
        complaints = [entry for _, entry in batch if isinstance(entry, str)]
        if complaints and settings.unreadable == "fail":
            raise InputError(f"{complaints[0]}; replace it, or go on without such pictures by --unreadable skip")
        unreadable += complaints
        pictures = [entry.to(device).float() / 255 for _, entry in batch if isinstance(entry, Tensor)]
        found = iter(_describe(pictures, boxer, describer, class_features, settings, device) if pictures else [])
        empty = _empty(describer.settings.head, class_features.d)
        bags += [next(found) if isinstance(entry, Tensor) else empty for _, entry in batch]
    return bags, unreadable


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
        described = describe(seen if describer is boxer else Seen(describer.model, pictures), boxes)
        extra = class_features(pictures, boxes)
    return [_bag(p, mine, more) for p, mine, more in zip(pictures, described, extra, strict=True)]


def _whole(picture: Tensor, like: Tensor) -> Tensor:
    return like.new_tensor([[0.0, 0.0, picture.shape[2], picture.shape[1]]])


def _bag(picture: Tensor, proposals: Proposals, class_features: Tensor) -> Bag:
    top = torch.finfo(torch.float16).max
    return Bag(
        proposals.boxes.float().cpu().numpy(),
        proposals.objectness.float().cpu().numpy(),
        proposals.features.float().clamp(-top, top).half().cpu().numpy(),
        class_features.float().clamp(-top, top).half().cpu().numpy(),
        (picture.shape[2], picture.shape[1]),
    )


def _empty(transfer: int, class_features: int) -> Bag:
    return Bag(
        np.zeros((0, 4), np.float32),
        np.zeros(0, np.float32),
        np.zeros((0, transfer), np.float16),
        np.zeros((0, class_features), np.float16),
        (0, 0),
    )
