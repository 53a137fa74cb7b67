import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairloc.data.folds import folds


@given(st.integers(1, 200), st.data())
def test_every_item_is_in_one_fold_and_folds_are_even(count: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, count))
    seed = data.draw(st.integers(0, 5))
    result = folds(count, k, np.random.default_rng(seed))
    sizes = np.bincount(result, minlength=k)
    assert len(result) == count
    assert len(sizes) == k
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(result, folds(count, k, np.random.default_rng(seed)))


def test_seeds_differ_and_too_many_folds_are_refused() -> None:
    assert (folds(50, 5, np.random.default_rng(0)) != folds(50, 5, np.random.default_rng(1))).any()
    with pytest.raises(ValueError, match="3 items cannot be cut into 4 folds"):
        folds(3, 4, np.random.default_rng(0))
