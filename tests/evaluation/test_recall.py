import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pairloc.boxes import Floats, best_iou, iou
from pairloc.evaluation.recall import recall_by_count


def boxes(generator: np.random.Generator, n: int) -> Floats:
    corners = generator.uniform(0, 10, (n, 2))
    return np.concatenate([corners, corners + generator.uniform(1, 5, (n, 2))], axis=1)


@given(st.integers(0, 999), st.integers(1, 4), st.integers(0, 6), st.integers(0, 5))
def test_recall_equals_the_loop(seed: int, images: int, truth_count: int, proposals: int) -> None:
    generator = np.random.default_rng(seed)
    image, label = generator.integers(0, images, truth_count), generator.integers(0, 3, truth_count)
    truth, found = boxes(generator, truth_count), [boxes(generator, proposals) for _ in range(images)]
    counts, thresholds = [1, 3, 5], [0.3, 0.5]
    total, per_class = recall_by_count(found, image, label, truth, counts, thresholds)
    for row, count in enumerate(counts):
        for column, threshold in enumerate(thresholds):
            hits = [
                any(iou(box[None], other[None])[0, 0] >= threshold for other in found[i][:count])
                for i, box in zip(image.tolist(), truth, strict=True)
            ]
            if truth_count:
                assert total[row, column] == np.mean(hits)
            for c in np.unique(label).tolist():
                assert per_class[c, row, column] == np.mean(
                    [hit for hit, hit_class in zip(hits, label, strict=True) if hit_class == c]
                )
    if truth_count:
        assert (np.diff(total, axis=0) >= 0).all()
    else:
        assert np.isnan(total).all()


def test_nothing_proposed_covers_nothing() -> None:
    assert best_iou(np.zeros((0, 4)), np.array([[0.0, 0.0, 1.0, 1.0]])).tolist() == [0.0]
    assert best_iou(np.array([[0.0, 0.0, 1.0, 1.0]]), np.zeros((0, 4))).tolist() == []
