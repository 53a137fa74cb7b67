"""Fine-tuning: the proposer itself re-trained on the boxes found, fold by fold.

Class scores read features that stay as they are. Here the network that makes the features learns the target's classes;
of the pictures it did not see it then says how much every proposal shows a tagged class, and where the edges are.
"""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torchvision.ops import nms

from pairloc.detector.reading import batches
from pairloc.detector.propose import Seen, judge
from pairloc.detector.proposer import Proposer, Say
from pairloc.settings import FineTuneSettings
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.detector.detect import train_detector
from pairloc.io import write_tensors
from pairloc.refinement.voting import mean_box
from pairloc.localization.target import Selection, Target
from pairloc.sharing import ALONE, Share

_AT_ONCE = 32  # pictures
_APART = 0.5  # IoU below which two boxes are two instances


@dataclass(frozen=True)
class Opinion:
    """What networks that never saw a bag say of its proposals; of every class."""

    score: tuple[Tensor, ...]  # log-probability of the class (M, B)
    boxes: tuple[Tensor, ...]  # the proposal moved onto the object (M, B, 4)


def fine_tune(
    dataset: Dataset,
    target: Target,
    boxes: ScoredBoxes,
    fold: Tensor,
    start: Proposer,
    settings: FineTuneSettings,
    out: Path,
    *,
    device: str = "cpu",
    say: Say = lambda line: None,
    share: Share = ALONE,
) -> None:
    """Train a network without each fold (N,) of the bags and let it judge that fold, into `out`; goes on by folds."""
    folds = int(fold.max()) + 1
    owners = share.owners([1.0] * folds)
    for number in range(folds):
        file = _file(out, number)
        if owners[number] != share.rank or file.is_file():
            continue
        held = fold.numpy() == number if folds > 1 else np.ones(len(fold), dtype=np.bool_)
        taught = boxes.where(~held[boxes.image]) if folds > 1 else boxes
        work = out / f"network-{number}"
        shutil.rmtree(work, ignore_errors=True)
        network = _train(dataset, taught, start, settings, work, device)
        row, score, moved = _judge(network, dataset, target, held, settings, device)
        write_tensors(file, {"row": row, "score": score, "boxes": moved})
        shutil.rmtree(work)
        say(f"fold {number + 1} of {folds}: a network that learned {len(taught)} boxes")


def read_opinion(target: Target, out: Path, folds: int) -> Opinion:
    """What `fine_tune` wrote."""
    counts = [len(bags) for bags in target.positives]
    device, size = target.transfer.device, target.transfer.size
    score = torch.full((sum(counts), size), -torch.inf)
    boxes = torch.zeros(sum(counts), size, 4)
    for number in range(folds):
        found = load_file(_file(out, number))
        score[found["row"]], boxes[found["row"]] = found["score"], found["boxes"]
    return Opinion(*(tuple(torch.split(table.to(device), counts)) for table in (score, boxes)))


def decide(
    scores: tuple[Tensor, ...], opinion: Opinion, settings: FineTuneSettings, refine: float
) -> tuple[Selection, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The selection by scores (M, B) and opinion together, how much worse the next best is (M,), and the boxes (M, 4).

    A box is the mean, by score, of the moved proposals that overlap the selected one by `refine`.
    """
    selection, gaps, boxes = [], [], []
    for known, said, moved in zip(scores, opinion.score, opinion.boxes, strict=True):
        total = known + settings.weight * said
        best = total.topk(min(2, total.shape[1]), dim=1)
        chosen = best.indices[:, 0]
        box = moved[torch.arange(len(chosen), device=chosen.device), chosen]
        selection.append(chosen.cpu())
        gaps.append((best.values[:, 0] - best.values[:, -1]).double().cpu())
        boxes.append(mean_box(box, moved, total, refine) if refine and len(box) else box)
    return tuple(selection), tuple(gaps), tuple(boxes)


def instances(target: Target, opinion: Opinion, boxes: tuple[Tensor, ...], sure: float) -> ScoredBoxes:
    """The boxes (M, 4) of every class, and all others of a tag that the networks are sure of: its further instances."""
    columns: list[tuple[int, int, list[float], float]] = []
    for label, (bags, said, moved, own) in enumerate(
        zip(target.positives, opinion.score, opinion.boxes, boxes, strict=True)
    ):
        for bag, score, some, box in zip(bags.tolist(), said.exp(), moved, own, strict=True):
            likely = score >= sure
            found = torch.cat([box[None], some[likely]])
            rank = torch.cat([score.new_ones(1), score[likely]])
            for place in nms(found, rank, _APART).tolist():
                columns.append((bag, label, found[place].tolist(), float(rank[place])))
    image, label_, corners, score_ = zip(*columns, strict=True) if columns else ((), (), (), ())
    return ScoredBoxes(
        np.array(image, dtype=np.int64),
        np.array(label_, dtype=np.int64),
        np.array(corners, dtype=np.float64).reshape(-1, 4),
        np.array(score_, dtype=np.float64),
    )


def _file(out: Path, number: int) -> Path:
    return out / f"fold-{number}.safetensors"


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
def _judge(
    network: Proposer,
    dataset: Dataset,
    target: Target,
    held: np.ndarray[tuple[int], np.dtype[np.bool_]],
    settings: FineTuneSettings,
    device: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the tags of held bags: their rows (t,) among all tags, log-probabilities (t, B) and moved boxes (t, B, 4)."""
    bag = torch.cat(target.positives)
    label = torch.cat([torch.full((len(bags),), c) for c, bags in enumerate(target.positives)])
    rows = torch.nonzero(torch.from_numpy(held)[bag])[:, 0]
    rows = rows[bag[rows].argsort(stable=True)]  # the tags of a picture side by side
    asked = sorted(set(bag[rows].tolist()))
    groups = [asked[start : start + _AT_ONCE] for start in range(0, len(asked), _AT_ONCE)]
    score = torch.full((len(rows), target.transfer.size), -torch.inf)
    moved = torch.zeros(len(rows), target.transfer.size, 4)
    at = 0
    paths = [dataset.path(index) for index in range(len(dataset))]
    for group, read in zip(groups, batches(paths, groups, settings.workers), strict=True):
        proposals = [target.transfer.boxes[i][target.transfer.valid[i]].to(device) for i in group]
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            said, boxes = judge(Seen(network.model, read.every().to(device)), proposals)
        counts = [len(mine) for mine in proposals]
        for index, p, b in zip(group, torch.split(said.cpu(), counts), torch.split(boxes.cpu(), counts), strict=True):
            while at < len(rows) and int(bag[rows[at]]) == index:
                place = int(label[rows[at]]) + 1
                score[at, : len(p)], moved[at, : len(p)] = p[:, place], b[:, place]
                at += 1
    return rows, score, moved
