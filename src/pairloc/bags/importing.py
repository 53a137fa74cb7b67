"""Importing proposals of any detector, given as COCO results, into a bag store, with or without features."""

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
    """Write a store from COCO results (`image_id`, `bbox`, `score`) and return the number of proposals kept.

    `features` is a .npy array (results, d) with one row per result, in the order of the file; it serves as transferred
    and as class features. The `count` results of every image with the highest scores are kept. A score is read as a
    probability and stored as its logit.

    Raises an InputError if a result is invalid or the features do not fit.
    """
    results = read_results(proposals, dataset, classes=False)
    table = _features(features, len(results))
    by_image: list[list[int]] = [[] for _ in dataset.images]
    for row, index in enumerate(results.image.tolist()):
        by_image[index].append(row)
    settings = {"proposals": count, "results": sha256(proposals), "features": sha256(features) if features else ""}
    with StoreWriter(store, dataset, settings, shard=shard) as writer:
        for number in writer.missing():
            first, last = writer.ranges[number]
            bags = []
            for index in range(first, last):
                order = sorted(by_image[index], key=lambda row: -results.score[row])[:count]
                boxes = results.boxes[order].astype(np.float32).reshape(-1, 4)
                score = np.clip(results.score[order], 1e-6, 1 - 1e-6)
                described = np.asarray(table[order], dtype=np.float16).reshape(len(order), table.shape[1])
                logit = np.log(score / (1 - score)).astype(np.float32).reshape(-1)
                bags.append(Bag(boxes, logit, described, described, dataset.images[index].size or (0, 0)))
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
            f"{path}: is {table.dtype} of shape {table.shape}; give one row of floats for each of the {count} results"
        )
    return table
