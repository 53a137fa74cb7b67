"""Bring your own proposals: any detector's COCO results, with features or without, become a bag store."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pairloc.bags.store import Bag, StoreWriter
from pairloc.datasets.dataset import Dataset
from pairloc.errors import InputError
from pairloc.formats.coco_results import read_results
from pairloc.io import reason, sha256


def import_bags(
    dataset: Dataset,
    proposals: Path,
    store: Path,
    *,
    features: Path | None = None,
    count: int = 100,
    shard: int = 256,
) -> int:
    """Write a store from COCO results (`image_id`, `bbox`, `score`); the number of proposals kept.

    `features` is (results, d), a row a result in the file's order, and serves as transferred and class feature. The
    best `count` of every image are kept; a score is taken for a probability and kept as its logit.
    """
    found = read_results(proposals, dataset, classes=False)
    table = _features(features, len(found))
    by_image: list[list[int]] = [[] for _ in dataset.images]
    for row, index in enumerate(found.image.tolist()):
        by_image[index].append(row)
    settings = {"proposals": count, "results": sha256(proposals), "features": sha256(features) if features else ""}
    with StoreWriter(store, dataset, settings, shard=shard) as writer:
        for number in writer.missing():
            first, last = writer.ranges[number]
            bags = []
            for index in range(first, last):
                order = sorted(by_image[index], key=lambda row: -found.score[row])[:count]
                chosen = found.boxes[order].astype(np.float32).reshape(-1, 4)
                score = np.clip(found.score[order], 1e-6, 1 - 1e-6)
                described = np.asarray(table[order], dtype=np.float16).reshape(len(order), table.shape[1])
                logit = np.log(score / (1 - score)).astype(np.float32).reshape(-1)
                bags.append(Bag(chosen, logit, described, described, dataset.images[index].size or (0, 0)))
            writer.write(number, bags)
        writer.finish()
    return sum(min(len(rows), count) for rows in by_image)


def _features(path: Path | None, count: int) -> npt.NDArray[Any]:
    if path is None:
        return np.zeros((count, 0), dtype=np.float16)
    try:
        table: npt.NDArray[Any] = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: is not an .npy array ({reason(error)})") from error
    if table.ndim != 2 or len(table) != count or not np.issubdtype(table.dtype, np.floating):
        raise InputError(
            f"{path}: is {table.dtype} of shape {table.shape}, not a row of numbers for each of {count} results"
        )
    return table
