"""Bring your own proposals: any detector's COCO results, with features or without, become a bag store."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pairloc.bags.store import Bag, StoreWriter
from pairloc.data.dataset import Dataset
from pairloc.errors import InputError, shown
from pairloc.files import read_json, reason, sha256


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
    entries = read_json(proposals)
    if not isinstance(entries, list):
        raise InputError(f"{proposals}: is not COCO results: not a list of boxes")
    table = _features(features, len(entries))
    by_image: dict[int | str, list[int]] = {image.id: [] for image in dataset.images}
    rows = [_row(entry, f"{proposals}: [{place}]", by_image) for place, entry in enumerate(entries)]
    for place, (id, _, _) in enumerate(rows):
        by_image[id].append(place)
    settings = {"proposals": count, "results": sha256(proposals), "features": sha256(features) if features else ""}
    kept = 0
    with StoreWriter(store, dataset, settings, shard=shard) as writer:
        for number in writer.missing():
            first, last = writer.ranges[number]
            bags = []
            for image in dataset.images[first:last]:
                order = sorted(by_image[image.id], key=lambda place: -rows[place][2])[:count]
                chosen = np.array([rows[place][1] for place in order], dtype=np.float32).reshape(-1, 4)
                score = np.clip(np.array([rows[place][2] for place in order]), 1e-6, 1 - 1e-6)
                described = np.asarray(table[order], dtype=np.float16).reshape(len(order), table.shape[1])
                logit = np.log(score / (1 - score)).astype(np.float32).reshape(-1)
                bags.append(Bag(chosen, logit, described, described, image.size or (0, 0)))
                kept += len(order)
            writer.write(number, bags)
        writer.finish()
    return kept


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


def _row(
    entry: object, place: str, images: dict[int | str, list[int]]
) -> tuple[int | str, tuple[float, float, float, float], float]:
    """Image, corners and score of a result."""
    if not isinstance(entry, dict):
        raise InputError(f"{place}: is {shown(entry)}, not an object")
    image, box, score = entry.get("image_id"), entry.get("bbox"), entry.get("score")
    if not isinstance(image, int | str) or image not in images:
        raise InputError(f"{place}: image_id is {shown(image)}, which is not in the data set")
    numbers = [*box, score] if isinstance(box, list) and len(box) == 4 else []
    if len(numbers) != 5 or not all(isinstance(n, int | float) and np.isfinite(n) for n in numbers):
        raise InputError(f"{place}: bbox is {shown(box)} and score {shown(score)}; five finite numbers are needed")
    x, y, width, height, score = (float(n) for n in numbers)
    if width <= 0 or height <= 0:
        raise InputError(f"{place}: bbox is {shown(box)}, which has no area")
    return image, (x, y, x + width, y + height), score
