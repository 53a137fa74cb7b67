import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairloc.boxes import iou
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.evaluation.corloc import Localized, corloc, localized, reliability
from pairloc.evaluation.table import align

CLASSES = ("a", "b", "c")


def dataset(images: int) -> Dataset:
    return Dataset(tuple(Image(i, f"{i}.jpg", None) for i in range(images)), CLASSES, ((),) * images)


def boxes(random: np.random.Generator, n: int) -> np.ndarray:
    corner = random.uniform(0, 5, (n, 2))
    return np.concatenate([corner, corner + random.uniform(2, 6, (n, 2))], axis=1)


def reference(found: ScoredBoxes, truth: GroundTruth, images: int, threshold: float) -> float:
    """CorLoc as the paper defines it, written as loops."""
    fractions = []
    for c in range(3):
        hits = []
        for i in range(images):
            true_boxes = truth.boxes[(truth.image == i) & (truth.label == c) & ~truth.ignored]
            if len(true_boxes):
                rows = np.flatnonzero((found.image == i) & (found.label == c))
                best = rows[np.argmax(found.score[rows])] if len(rows) else None
                hits.append(best is not None and iou(found.boxes[best][None], true_boxes).max() > threshold)
        fractions += [np.mean(hits)] if hits else []
    return float(np.mean(fractions))


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 12), st.integers(0, 12), st.sampled_from([0.3, 0.5]))
def test_corloc_equals_the_reference(
    seed: int, images: int, truth_count: int, found_count: int, threshold: float
) -> None:
    random = np.random.default_rng(seed)
    truth = GroundTruth(
        random.integers(0, images, truth_count),
        random.integers(0, 3, truth_count),
        boxes(random, truth_count),
        random.random(truth_count) < 0.1,
    )
    found = ScoredBoxes(
        random.integers(0, images, found_count),
        random.integers(0, 3, found_count),
        boxes(random, found_count),
        random.random(found_count),
    )
    result = corloc(localized(dataset(images), found, truth), threshold, draws=20)
    if truth.ignored.all():
        assert np.isnan(result.mean)
        return
    assert result.mean == pytest.approx(reference(found, truth, images, threshold))
    assert 0 <= result.interval[0] <= result.interval[1] <= 1


def test_the_interval_covers_the_true_value_about_95_times_in_100() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        right = random.random(60) < 0.6
        truth = GroundTruth(
            np.arange(60), np.zeros(60, dtype=np.int64), np.tile([0.0, 0, 4, 4], (60, 1)), np.zeros(60, dtype=bool)
        )
        found = ScoredBoxes(
            np.arange(60),
            np.zeros(60, dtype=np.int64),
            np.where(right[:, None], [0.0, 0, 4, 4], [9.0, 9, 10, 10]),
            np.ones(60),
        )
        low, high = corloc(localized(dataset(60), found, truth), draws=200).interval
        covered += low <= 0.6 <= high
    assert 85 <= covered <= 100


def test_an_iou_equal_to_the_threshold_is_a_miss_only_if_strict() -> None:
    truth = GroundTruth(np.array([0]), np.array([0]), np.array([[0.0, 0, 2, 2]]), np.array([False]))
    found = ScoredBoxes(np.array([0]), np.array([0]), np.array([[0.0, 0, 2, 1]]), np.array([1.0]))
    result = localized(dataset(1), found, truth)
    assert corloc(result, 0.5).mean == 0
    assert corloc(result, 0.5, strict=False).mean == 1


def test_boxes_are_matched_by_file_and_class_name() -> None:
    other = Dataset((Image(77, "1.jpg", None), Image(78, "none.jpg", None)), ("b", "a"), ((), ()))
    found = ScoredBoxes(np.array([0, 1]), np.array([0, 1]), np.zeros((2, 4)), np.ones(2))
    aligned = align(other, found, dataset(3))
    assert aligned.image.tolist() == [1]
    assert aligned.label.tolist() == [1]
    with pytest.raises(InputError, match="no class 'z'"):
        align(Dataset(other.images, ("z", "a"), ((), ())), found, dataset(3))
    with pytest.raises(InputError, match="no image in common"):
        align(Dataset((Image("x", "x.jpg", None),) * 2, ("b", "a"), ((), ())), found, dataset(3))


def test_reliability_of_calibrated_scores() -> None:
    random = np.random.default_rng(0)
    score = random.random(20_000)
    right = random.random(20_000) < score
    found = Localized(np.arange(20_000), np.zeros(20_000, dtype=np.int64), right.astype(float), score, ("a",))
    bins = reliability(found)
    assert sum(entry["count"] for entry in bins) == 20_000
    for entry in bins:
        assert entry["right"] == pytest.approx(entry["score"], abs=0.05)
