"""Final selection with the predictions of networks that were fine-tuned on the boxes of `full`."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms

from pairloc.boxes import iou
from pairloc.datasets.scored import ScoredBoxes
from pairloc.localization.confidence import Calibration, confidence, plain_signals
from pairloc.localization.explanation import BEFORE, NETWORK, of_parts
from pairloc.localization.result import Localization, scored_boxes
from pairloc.localization.sharing import Sharing, share_confidence
from pairloc.refinement import Candidates, refine
from pairloc.settings import BoxSettings, FineTuneSettings

_SAME_IOU = 0.5  # two boxes with a higher IoU count as one instance


@dataclass(frozen=True)
class Predictions:
    """Predictions for all proposals, by networks not trained on their bags; tuples have one entry per class."""

    score: tuple[Tensor, ...]  # (M, B) log-probability of the class
    boxes: tuple[Tensor, ...]  # (M, B, 4) proposals after box regression


def decide(
    before: Localization,
    predictions: Predictions,
    settings: FineTuneSettings,
    boxes: BoxSettings,
    calibration: Calibration,
) -> tuple[Localization, tuple[Tensor, ...]]:
    """Select again by the sum of scores and predictions; return the localization and its boxes (M, 4) per class.

    For the confidence, the networks count as one more view, which always agrees. Where `before` can be explained, so
    can the result: by the scores before, and by what the networks add.
    """
    selection, gaps, agreements, refined, confidences, explanations = [], [], [], [], [], []
    tables = zip(before.scores, predictions.score, predictions.boxes, strict=True)
    for label, (scores, predicted, regressed) in enumerate(tables):
        total = scores + settings.weight * predicted
        best = total.topk(min(2, total.shape[1]), dim=1)
        chosen = best.indices[:, 0]
        box = regressed[torch.arange(len(chosen)), chosen]
        previous = before.proposals[before.positives[label], before.state.selection[label]]
        same = iou(previous[:, None], box[:, None])[:, 0, 0] > _SAME_IOU
        agreements.append((2 * before.agreement[label] * same + 1) / 3)
        selection.append(chosen)
        gaps.append((best.values[:, 0] - best.values[:, -1]).double())
        refined.append(refine(box, Candidates(regressed, total), boxes))
        confidences.append(confidence(calibration, plain_signals(agreements[-1], gaps[-1])))
        parts = torch.stack([scores, settings.weight * predicted], dim=2)
        explanations.append(of_parts((BEFORE, NETWORK), parts, regressed, total, chosen) if len(chosen) else None)
    sharing = Sharing()
    if before.is_explained:
        lowered, sharing = share_confidence(before.positives, tuple(refined), tuple(confidences))
        confidences = list(lowered)
    state = replace(before.state, selection=tuple(selection), gaps=tuple(gaps))
    found = scored_boxes(before.positives, tuple(refined), tuple(confidences))
    after = replace(
        before,
        boxes=found,
        state=state,
        agreement=tuple(agreements),
        explanations=tuple(explanations) if before.is_explained else (),
        sharing=sharing,
    )
    return after, tuple(refined)


def instances(
    before: Localization, predictions: Predictions, boxes: tuple[Tensor, ...], threshold: float
) -> ScoredBoxes:
    """Return the boxes (M, 4) of every class together with further instances of each tag.

    A further instance is a box whose predicted probability is at least `threshold` and which survives non-maximum
    suppression.
    """
    columns: list[tuple[int, int, list[float], float]] = []
    for label, (bags, predicted, regressed, selected) in enumerate(
        zip(before.positives, predictions.score, predictions.boxes, boxes, strict=True)
    ):
        for bag, score, candidates, box in zip(bags.tolist(), predicted.exp(), regressed, selected, strict=True):
            likely = score >= threshold
            found = torch.cat([box[None], candidates[likely]])
            rank = torch.cat([score.new_ones(1), score[likely]])
            for index in nms(found, rank, _SAME_IOU).tolist():
                columns.append((bag, label, found[index].tolist(), float(rank[index])))
    image, label_, corners, score_ = zip(*columns, strict=True) if columns else ((), (), (), ())
    return ScoredBoxes(
        np.array(image, dtype=np.int64),
        np.array(label_, dtype=np.int64),
        np.array(corners, dtype=np.float64).reshape(-1, 4),
        np.array(score_, dtype=np.float64),
    )
