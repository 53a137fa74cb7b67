"""Fine-tuning: re-train the proposer itself on the boxes of `full`, fold by fold.

Class scores use fixed features. Here the network that computes the features is trained on the target classes. It then
predicts, for images it was not trained on, the probability that a proposal shows a tagged class, and a refined box.
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
from pairloc.platform import mixed_precision
from pairloc.settings import FineTuneSettings

_BATCH = 32  # images per forward pass


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
    """For each fold, train a network on the boxes of the other folds and predict that fold.

    The predictions of every fold are saved in the folder `out`; an interrupted call skips the folds that are saved.
    """
    fold = before.state.fold.numpy()
    folds = int(fold.max()) + 1
    for number in range(folds):
        file = out / f"fold-{number}.safetensors"
        if _read_fold(file, before) is not None:
            continue
        held_out = fold == number if folds > 1 else np.ones(len(fold), dtype=np.bool_)
        training_boxes = boxes.where(~held_out[boxes.image]) if folds > 1 else boxes
        work = out / f"network-{number}"
        shutil.rmtree(work, ignore_errors=True)
        network = _train(dataset, training_boxes, start, settings, work, device)
        row, score, regressed = _predict(network, dataset, store, before, held_out, settings, device)
        write_tensors(file, {"row": row, "score": score, "boxes": regressed})
        shutil.rmtree(work)
        log(f"network {number + 1} of {folds}: trained on {len(training_boxes)} boxes")
    return _read_predictions(before, out, folds)


def _read_predictions(before: Localization, out: Path, folds: int) -> Predictions:
    counts, size = [len(bags) for bags in before.positives], before.proposals.shape[1]
    score = torch.full((sum(counts), size), -torch.inf)
    boxes = torch.zeros(sum(counts), size, 4)
    for number in range(folds):
        saved = _read_fold(out / f"fold-{number}.safetensors", before)
        if saved is not None:
            score[saved["row"]], boxes[saved["row"]] = saved["score"], saved["boxes"]
    return Predictions(*(tuple(torch.split(table, counts)) for table in (score, boxes)))


def _read_fold(file: Path, before: Localization) -> dict[str, Tensor] | None:
    """Read the saved predictions of a fold; return None if the file is missing or damaged."""
    tags, size = sum(len(bags) for bags in before.positives), before.proposals.shape[1]
    try:
        saved = load_file(file)
        row, score, boxes = saved["row"], saved["score"], saved["boxes"]
    except (OSError, KeyError, SafetensorError):
        return None
    fits = score.shape == (len(row), size) and boxes.shape == (len(row), size, 4) and row.dtype == torch.int64
    return saved if fits and (not len(row) or (int(row.min()) >= 0 and int(row.max()) < tags)) else None


def _train(
    dataset: Dataset, boxes: ScoredBoxes, start: Proposer, settings: FineTuneSettings, out: Path, device: str
) -> Proposer:
    steps_per_epoch = math.ceil(max(1, len(np.unique(boxes.image))) / settings.batch)
    changes = {
        "epochs": min(settings.epochs, math.ceil(settings.steps / steps_per_epoch)), "batch": settings.batch,
        "lr": settings.lr, "warm_up": settings.warm_up, "crop": settings.crop, "workers": settings.workers,
        "seed": settings.seed, "held_out": 0.0, "held_classes": 0, "class_agnostic": False, "pretrained": False,
    }  # fmt: skip
    detector_settings = start.settings.model_copy(update=changes)
    return train_detector(dataset, boxes, detector_settings, out, start=start, device=device, resumable=False)


@torch.no_grad()
def _predict(
    network: Proposer,
    dataset: Dataset,
    store: BagStore,
    before: Localization,
    held_out: np.ndarray[tuple[int], np.dtype[np.bool_]],
    settings: FineTuneSettings,
    device: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Predict the t tags of held-out bags.

    Returns their rows (t,) among all tags, log-probabilities (t, B) and refined boxes (t, B, 4).
    """
    bag = torch.cat(before.positives)
    label = torch.cat([torch.full((len(bags),), c) for c, bags in enumerate(before.positives)])
    rows = torch.nonzero(torch.from_numpy(held_out)[bag])[:, 0]
    rows = rows[bag[rows].argsort(stable=True)]  # groups the tags of an image
    images = sorted(set(bag[rows].tolist()))
    groups = [images[start : start + _BATCH] for start in range(0, len(images), _BATCH)]
    size = before.proposals.shape[1]
    score, regressed = torch.full((len(rows), size), -torch.inf), torch.zeros(len(rows), size, 4)
    tag = 0
    paths = [dataset.path(index) for index in range(len(dataset))]
    for group, read in zip(groups, batches(paths, groups, settings.workers), strict=True):
        proposals = [torch.from_numpy(np.array(store.bag(index).boxes)).to(device) for index in group]
        with mixed_precision(device):
            predicted, boxes = predict(ImageFeatures(network.model, read.require_all().to(device)), proposals)
        counts = [len(image_proposals) for image_proposals in proposals]
        split = (torch.split(table.cpu(), counts) for table in (predicted, boxes))
        for index, p, b in zip(group, *split, strict=True):
            while tag < len(rows) and int(bag[rows[tag]]) == index:
                column = int(label[rows[tag]]) + 1  # column 0 is background
                score[tag, : len(p)], regressed[tag, : len(p)] = p[:, column], b[:, column]
                tag += 1
    return rows, score, regressed
