import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pairloc.datasets.folds import folds


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 12), st.integers(0, 99))
def test_folds_are_balanced_by_class(count: int, classes: int, k: int, seed: int) -> None:
    """With one tag per image, the fold sizes of a class differ by at most one; so do those of untagged images."""
    label = np.random.default_rng(seed).integers(-1, classes, count)
    positives = [np.flatnonzero(label == c) for c in range(classes)]
    result = folds(count, positives, k, np.random.default_rng(seed))
    assert len(result) == count
    for c in range(-1, classes):
        sizes = np.bincount(result[label == c], minlength=k)
        assert len(sizes) == k
        assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(result, folds(count, positives, k, np.random.default_rng(seed)))


def test_an_image_counts_for_its_rarest_tag_and_seeds_differ() -> None:
    everything, rare = np.arange(50), np.arange(4)
    result = folds(50, [everything, rare], 4, np.random.default_rng(0))
    assert sorted(result[:4].tolist()) == [0, 1, 2, 3]
    assert (result != folds(50, [everything, rare], 4, np.random.default_rng(1))).any()
