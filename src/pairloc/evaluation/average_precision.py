"""Average precision of detections, by faster-coco-eval: the numbers pycocotools gives."""

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
    """Means over the classes that have a true box."""

    ap: float  # COCO's, over IoU 0.5, 0.55, ... 0.95
    ap50: float  # mAP@0.5
    ap75: float
    per_class50: dict[str, float]


def average_precision(dataset: Dataset, truth: GroundTruth, found: ScoredBoxes) -> AveragePrecision:
    """COCO's average precision of found boxes; those of images without a true box count as mistakes."""
    from faster_coco_eval import COCO, COCOeval_faster

    if not len(truth) or truth.ignored.all():
        raise InputError("the truth has no box that counts: there is nothing to measure precision with")
    annotations = [
        {
            "id": row + 1,
            "image_id": int(i) + 1,
            "category_id": int(c) + 1,
            "bbox": b,
            "area": b[2] * b[3],
            "iscrowd": int(g),
        }
        for row, (i, c, b, g) in enumerate(
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
