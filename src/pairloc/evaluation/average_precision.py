"""COCO average precision of detections, computed by faster-coco-eval, which agrees with pycocotools."""

import contextlib
import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from pairloc.boxes import to_xywh
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision, mean over the classes that have a ground-truth box."""

    ap: float  # mean over IoU 0.5, 0.55, ... 0.95
    ap50: float  # mAP@0.5
    ap75: float  # mAP@0.75
    per_class50: dict[str, float]  # AP@0.5 of every class


def average_precision(dataset: Dataset, truth: GroundTruth, found: ScoredBoxes) -> AveragePrecision:
    """COCO average precision of detections; those in images without ground-truth boxes count as false positives.

    Raises InputError if the ground truth has no box that counts.
    """
    from faster_coco_eval import COCO, COCOeval_faster

    if not len(truth) or truth.ignored.all():
        raise InputError("the ground truth has no box that counts (crowds do not); average precision needs one")
    annotations = [
        {
            "id": row + 1,
            "image_id": int(i) + 1,
            "category_id": int(c) + 1,
            "bbox": box,
            "area": box[2] * box[3],
            "iscrowd": int(ignored),
        }
        for row, (i, c, box, ignored) in enumerate(
            zip(truth.image, truth.label, to_xywh(truth.boxes).tolist(), truth.ignored, strict=True)
        )
    ]
    images = [{"id": index + 1} for index in range(len(dataset))]
    categories = [{"id": index + 1, "name": name} for index, name in enumerate(dataset.classes)]
    content = {"info": {}, "images": images, "categories": categories, "annotations": annotations}
    results = [
        {"image_id": int(i) + 1, "category_id": int(c) + 1, "bbox": box, "score": float(s)}
        for i, c, box, s in zip(found.image, found.label, to_xywh(found.boxes).tolist(), found.score, strict=True)
    ]
    if not results:
        return AveragePrecision(0.0, 0.0, 0.0, {dataset.classes[c]: 0.0 for c in np.unique(truth.label).tolist()})
    with contextlib.redirect_stdout(io.StringIO()):
        reference: Any = COCO(content)
        evaluation: Any = COCOeval_faster(reference, reference.loadRes(results), iouType="bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = np.asarray(evaluation.eval["precision"])  # (IoU, recall, classes, areas, counts)
    at50 = precision[0, :, :, 0, -1].mean(axis=0)
    per_class = {dataset.classes[c]: float(at50[c]) for c in range(len(dataset.classes)) if at50[c] >= 0}
    ap, ap50, ap75 = (float(value) for value in evaluation.stats[:3])
    return AveragePrecision(ap, ap50, ap75, per_class)
