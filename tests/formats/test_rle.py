"""Run-length encoded masks: pycocotools is the referee."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as referee

from pairloc.errors import InputError
from pairloc.formats.rle import decode, encode

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
masks = st.tuples(st.integers(0, 2**30), st.integers(1, 40), st.integers(1, 40), st.floats(0, 1)).map(
    lambda values: np.random.default_rng(values[0]).random((values[1], values[2])) < values[3]
)


@settings(deadline=None)
@given(masks)
def test_the_text_is_that_of_pycocotools(mask: np.ndarray) -> None:
    assert encode(mask) == referee.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()


@settings(deadline=None)
@given(masks)
def test_decoding_undoes_encoding(mask: np.ndarray) -> None:
    assert np.array_equal(decode(encode(mask), *mask.shape), mask)


def test_long_runs() -> None:
    mask = np.zeros((3000, 2000), dtype=np.bool_)
    mask[100:2900, 50:1950] = True
    text = encode(mask)
    assert text == referee.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    assert np.array_equal(decode(text, 3000, 2000), mask)


@settings(deadline=None)
@given(st.text(max_size=30), st.integers(1, 20), st.integers(1, 20))
def test_any_text_is_a_mask_of_the_size_or_refused(text: str, height: int, width: int) -> None:
    try:
        mask = decode(text, height, width)
    except InputError:
        return
    assert mask.shape == (height, width)


@pytest.mark.parametrize("text", ["", "P", "4o", "oooooooooooooooooooo0", "9" * 40, "O04", "\u20ac"])
def test_damaged_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a run-length encoded mask"):
        decode(text, 5, 5)
