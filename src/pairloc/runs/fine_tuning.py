"""Fine-tuning: the proposer itself re-trained on the boxes found, fold by fold.

Class scores read features that stay as they are. Here the network that makes the features learns the target's classes;
of the images it did not see it then says how much every proposal shows a tagged class, and where the edges are.
"""

import math
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pairloc.bags.store import BagStore
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.detector.detect import train_detector
from pairloc.detector.model import Proposer
from pairloc.detector.propose import ImageFeatures, predict
from pairloc.detector.reading import batches
from pairloc.io import write_tensors
from pairloc.localization.alternate import Log, silent
from pairloc.localization.predictions import Predictions
from pairloc.localization.result import Localization
from pairloc.settings import FineTuneSettings

_AT_ONCE = 32  # images


def fine_tune(
    dataset: Dataset,
    store: BagStore,
    before: Localization,
    boxes: ScoredBoxes,
    start: Proposer,
    settings: FineTuneSettings,
    out: Path,
    *,
    device: str = "cpu",
    log: Log = silent,
) -> Predictions:
    """Train a network on boxes without those of each fold and let it judge that fold; goes on by folds, in `out`."""
    fold = before.state.fold.numpy()
    folds = int(fold.max()) + 1
    for number in range(folds):
        file = out / f"fold-{number}.safetensors"
        if _read_fold(file, before) is not None:
            continue
        held = fold == number if folds > 1 else np.ones(len(fold), dtype=np.bool_)
        taught = boxes.where(~held[boxes.image]) if folds > 1 else boxes
        work = out / f"network-{number}"
        shutil.rmtree(work, ignore_errors=True)
        network = _train(dataset, taught, start, settings, work, device)
        row, score, moved = _predict(network, dataset, store, before, held, settings, device)
        write_tensors(file, {"row": row, "score": score, "boxes": moved})
        shutil.rmtree(work)
        log(f"network {number + 1} of {folds}: learned from {len(taught)} boxes")
    return _read_predictions(before, out, folds)


def _read_predictions(before: Localization, out: Path, folds: int) -> Predictions:
    counts, size = [len(bags) for bags in before.positives], before.proposals.shape[1]
    score = torch.full((sum(counts), size), -torch.inf)
    boxes = torch.zeros(sum(counts), size, 4)
    for number in range(folds):
        found = _read_fold(out / f"fold-{number}.safetensors", before)
        if found is not None:
            score[found["row"]], boxes[found["row"]] = found["score"], found["boxes"]
    return Predictions(*(tuple(torch.split(table, counts)) for table in (score, boxes)))


def _read_fold(file: Path, before: Localization) -> dict[str, Tensor] | None:
    """What a network said of its fold; None where it is missing or damaged and has to be asked again."""
    tags, size = sum(len(bags) for bags in before.positives), before.proposals.shape[1]
    try:
        found = load_file(file)
        row, score, boxes = found["row"], found["score"], found["boxes"]
    except (OSError, KeyError, SafetensorError):
        return None
    fits = score.shape == (len(row), size) and boxes.shape == (len(row), size, 4) and row.dtype == torch.int64
    return found if fits and (not len(row) or (int(row.min()) >= 0 and int(row.max()) < tags)) else None


def _train(
    dataset: Dataset, boxes: ScoredBoxes, start: Proposer, settings: FineTuneSettings, out: Path, device: str
) -> Proposer:
    steps = math.ceil(max(1, len(np.unique(boxes.image))) / settings.batch)  # of an epoch
    changes = {
        "epochs": min(settings.epochs, math.ceil(settings.steps / steps)), "batch": settings.batch, "lr": settings.lr,
        "warm_up": settings.warm_up, "crop": settings.crop, "workers": settings.workers,
        "seed": settings.seed, "held_out": 0.0, "held_classes": 0, "class_agnostic": False, "pretrained": False,
    }  # fmt: skip
    own = start.settings.model_copy(update=changes)
    return train_detector(dataset, boxes, own, out, start=start, device=device, resumable=False)


@torch.no_grad()
def _predict(
    network: Proposer,
    dataset: Dataset,
    store: BagStore,
    before: Localization,
    held: np.ndarray[tuple[int], np.dtype[np.bool_]],
    settings: FineTuneSettings,
    device: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the tags of held bags: their rows (t,) among all tags, log-probabilities (t, B) and moved boxes (t, B, 4)."""
    bag = torch.cat(before.positives)
    label = torch.cat([torch.full((len(bags),), c) for c, bags in enumerate(before.positives)])
    rows = torch.nonzero(torch.from_numpy(held)[bag])[:, 0]
    rows = rows[bag[rows].argsort(stable=True)]  # the tags of an image side by side
    asked = sorted(set(bag[rows].tolist()))
    groups = [asked[start : start + _AT_ONCE] for start in range(0, len(asked), _AT_ONCE)]
    size = before.proposals.shape[1]
    score, moved = torch.full((len(rows), size), -torch.inf), torch.zeros(len(rows), size, 4)
    at = 0
    paths = [dataset.path(index) for index in range(len(dataset))]
    for group, read in zip(groups, batches(paths, groups, settings.workers), strict=True):
        proposals = [torch.from_numpy(np.array(store.bag(index).boxes)).to(device) for index in group]
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            said, boxes = predict(ImageFeatures(network.model, read.every().to(device)), proposals)
        counts = [len(mine) for mine in proposals]
        for index, p, b in zip(group, torch.split(said.cpu(), counts), torch.split(boxes.cpu(), counts), strict=True):
            while at < len(rows) and int(bag[rows[at]]) == index:
                place = int(label[rows[at]]) + 1
                score[at, : len(p)], moved[at, : len(p)] = p[:, place], b[:, place]
                at += 1
    return rows, score, moved
