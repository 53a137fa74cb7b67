"""Deciding once more with what networks re-trained on the boxes say of the proposals."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms

from pairloc.boxes import iou
from pairloc.datasets.scored import ScoredBoxes
from pairloc.localization.confidence import Calibration, confidence
from pairloc.localization.result import Localization, scored_boxes
from pairloc.refinement import Candidates, refine
from pairloc.settings import BoxSettings, FineTuneSettings

_APART = 0.5  # IoU below which two boxes are two instances


@dataclass(frozen=True)
class Predictions:
    """What networks that never saw a bag say of its proposals; of every class."""

    score: tuple[Tensor, ...]  # log-probability of the class (M, B)
    boxes: tuple[Tensor, ...]  # the proposal moved onto the object (M, B, 4)


def decide(
    before: Localization,
    predictions: Predictions,
    settings: FineTuneSettings,
    boxes: BoxSettings,
    calibration: Calibration,
) -> tuple[Localization, tuple[Tensor, ...]]:
    """Scores and predictions together: what they select, and the moved boxes (M, 4) of every class.

    In the confidence the networks are one view more, which agrees with itself.
    """
    selection, gaps, agreements, corners, sure = [], [], [], [], []
    for label, (known, said, moved) in enumerate(zip(before.scores, predictions.score, predictions.boxes, strict=True)):
        total = known + settings.weight * said
        best = total.topk(min(2, total.shape[1]), dim=1)
        chosen = best.indices[:, 0]
        box = moved[torch.arange(len(chosen)), chosen]
        own = before.proposals[before.positives[label], before.state.selection[label]]
        same = iou(own[:, None], box[:, None])[:, 0, 0] > _APART
        agreements.append((2 * before.agreement[label] * same + 1) / 3)
        selection.append(chosen)
        gaps.append((best.values[:, 0] - best.values[:, -1]).double())
        corners.append(refine(box, Candidates(moved, total), boxes))
        sure.append(confidence(calibration, agreements[-1], gaps[-1]))
    state = replace(before.state, selection=tuple(selection), gaps=tuple(gaps))
    found = scored_boxes(before.positives, tuple(corners), tuple(sure))
    return replace(before, boxes=found, state=state, agreement=tuple(agreements)), tuple(corners)


def instances(
    before: Localization, predictions: Predictions, boxes: tuple[Tensor, ...], threshold: float
) -> ScoredBoxes:
    """The boxes (M, 4) of every class, and all others of a tag that the networks are sure of: its further instances."""
    columns: list[tuple[int, int, list[float], float]] = []
    for label, (bags, said, moved, own) in enumerate(
        zip(before.positives, predictions.score, predictions.boxes, boxes, strict=True)
    ):
        for bag, score, some, box in zip(bags.tolist(), said.exp(), moved, own, strict=True):
            likely = score >= threshold
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
