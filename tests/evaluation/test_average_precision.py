"""Average precision against pycocotools."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from pairloc.boxes import to_xywh
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.evaluation.average_precision import average_precision

CLASSES = ("a", "b", "c")


def dataset(images: int) -> Dataset:
    return Dataset(tuple(Image(f"id {i}", f"{i}.jpg", (100, 100)) for i in range(images)), CLASSES, ((),) * images)


def boxes(random: np.random.Generator, n: int) -> np.ndarray:
    corner = random.uniform(0, 40, (n, 2))
    return np.concatenate([corner, corner + random.uniform(5, 60, (n, 2))], axis=1)


def pycocotools_precision(images: int, truth: GroundTruth, found: ScoredBoxes) -> list[float]:
    """AP, AP50 and AP75."""
    annotations = [
        {"id": k + 1, "image_id": int(i), "category_id": int(c), "bbox": b, "area": b[2] * b[3], "iscrowd": int(crowd)}
        for k, (i, c, b, crowd) in enumerate(
            zip(truth.image, truth.label, to_xywh(truth.boxes).tolist(), truth.ignored, strict=True)
        )
    ]
    results = [
        {"image_id": int(i), "category_id": int(c), "bbox": b, "score": float(s)}
        for i, c, b, s in zip(found.image, found.label, to_xywh(found.boxes).tolist(), found.score, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        reference = COCO()
        reference.dataset = {
            "images": [{"id": i} for i in range(images)],
            "categories": [{"id": c} for c in range(3)],
            "annotations": annotations,
            "info": {},
        }
        reference.createIndex()
        evaluation = COCOeval(reference, reference.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [float(value) for value in evaluation.stats[:3]]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 15), st.integers(1, 30))
def test_precision_equals_pycocotools(seed: int, images: int, truth_count: int, found_count: int) -> None:
    random = np.random.default_rng(seed)
    truth = GroundTruth(
        random.integers(0, images, truth_count), random.integers(0, 3, truth_count), boxes(random, truth_count),
        (random.random(truth_count) < 0.15) & (np.arange(truth_count) > 0),
    )  # fmt: skip
    near = random.integers(0, truth_count, found_count)
    moved = truth.boxes[near] + random.normal(0, 3, (found_count, 4))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    found = ScoredBoxes(truth.image[near], truth.label[near], moved, random.random(found_count).round(1))
    result = average_precision(dataset(images), truth, found)
    assert [result.ap, result.ap50, result.ap75] == pytest.approx(pycocotools_precision(images, truth, found), abs=1e-6)
    assert result.ap50 == pytest.approx(np.mean(list(result.per_class50.values())), abs=1e-6)


def test_perfect_detections_no_detections_and_no_ground_truth() -> None:
    truth = GroundTruth(
        np.array([0, 1]), np.array([0, 2]), np.array([[0.0, 0, 9, 9], [3.0, 3, 40, 50]]), np.zeros(2, bool)
    )
    perfect = ScoredBoxes(truth.image, truth.label, truth.boxes, np.array([0.5, 0.6]))
    assert average_precision(dataset(2), truth, perfect).ap == pytest.approx(1)
    nothing = ScoredBoxes(np.zeros(0, int), np.zeros(0, int), np.zeros((0, 4)), np.zeros(0))
    assert average_precision(dataset(2), truth, nothing).per_class50 == {"a": 0.0, "c": 0.0}
    with pytest.raises(InputError, match="no box that counts"):
        average_precision(dataset(2), truth.where(np.zeros(2, bool)), perfect)
