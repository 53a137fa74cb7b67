"""Masks: their parts against a flood fill written out, and the boxes around them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pairloc.refinement.masks import Masks, connected, main_parts


def masks_of(*masks: np.ndarray, size: tuple[int, int] | None = None) -> Masks:
    """Masks (h, w) of an image of the same size, or of another one."""
    table = torch.from_numpy(np.stack(masks)) if masks else torch.zeros(0, 8, 8, dtype=torch.bool)
    ones = torch.ones(len(table))
    return Masks(table, size or (table.shape[2], table.shape[1]), ones, ones)


def rectangle(x1: int, y1: int, x2: int, y2: int, shape: tuple[int, int] = (40, 60)) -> np.ndarray:
    mask = np.zeros(shape, dtype=np.bool_)
    mask[y1:y2, x1:x2] = True
    return mask


def flooded(mask: np.ndarray) -> list[set[tuple[int, int]]]:
    """The connected parts of a mask, cell by cell."""
    left, parts = {(int(y), int(x)) for y, x in zip(*np.nonzero(mask), strict=True)}, []
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            y, x = edge.pop()
            part.add((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            edge += near
        parts.append(part)
    return parts


random_masks = st.tuples(st.integers(0, 2**30), st.integers(1, 12), st.integers(1, 12), st.floats(0.1, 0.9)).map(
    lambda values: np.random.default_rng(values[0]).random((3, values[1], values[2])) < values[3]
)


@settings(deadline=None, max_examples=60)
@given(random_masks)
def test_parts_are_those_of_a_flood_fill(masks: np.ndarray) -> None:
    labels = connected(torch.from_numpy(masks)).numpy()
    for mask, label in zip(masks, labels, strict=True):
        assert np.array_equal(label > 0, mask)
        parts = {frozenset(zip(*map(np.ndarray.tolist, np.nonzero(label == n)), strict=True)) for n in set(label[mask])}
        assert parts == {frozenset(part) for part in flooded(mask)}


def test_a_winding_part_is_one() -> None:
    mask = np.zeros((31, 31), dtype=np.bool_)
    mask[::2] = True
    for row in range(1, 31, 2):
        mask[row, 0 if row % 4 == 1 else 30] = True  # a snake through all rows
    assert len(torch.unique(connected(torch.from_numpy(mask)[None]))) == 2


@settings(deadline=None, max_examples=60)
@given(random_masks)
def test_parts_of_less_than_a_tenth_of_the_largest_are_dropped(masks: np.ndarray) -> None:
    kept = main_parts(torch.from_numpy(masks)).numpy()
    for mask, after in zip(masks, kept, strict=True):
        parts = flooded(mask)
        largest = max(map(len, parts), default=0)
        expected = set().union(*(part for part in parts if 10 * len(part) >= largest))
        assert {(int(y), int(x)) for y, x in zip(*np.nonzero(after), strict=True)} == expected


def test_parts_of_a_fine_mask_are_told_apart_on_a_coarse_grid() -> None:
    shape = (600, 1000)
    mask = rectangle(100, 100, 500, 400, shape) | rectangle(900, 500, 910, 510, shape)
    assert np.array_equal(main_parts(torch.from_numpy(mask)[None])[0].numpy(), rectangle(100, 100, 500, 400, shape))
    both = rectangle(100, 100, 500, 400, shape) | rectangle(700, 100, 900, 400, shape)
    assert np.array_equal(main_parts(torch.from_numpy(both)[None])[0].numpy(), both)


def test_no_masks_have_no_boxes() -> None:
    assert masks_of().boxes().shape == (0, 4)
    assert masks_of().touch_every_border().shape == (0,)


def test_the_box_of_a_rectangle_is_the_rectangle_in_pixels_of_the_image() -> None:
    masks = masks_of(rectangle(10, 5, 30, 25), rectangle(0, 0, 60, 40), rectangle(59, 39, 60, 40), size=(120, 160))
    expected = [[20.0, 20.0, 60.0, 100.0], [0.0, 0.0, 120.0, 160.0], [118.0, 156.0, 120.0, 160.0]]
    assert masks.boxes().tolist() == expected
    assert masks_of(rectangle(10, 5, 30, 25), size=(120, 161)).boxes()[0, 3] == pytest.approx(100.625)


def test_the_box_leaves_specks_out_and_an_empty_mask_has_none() -> None:
    boxes = masks_of(rectangle(10, 5, 30, 25) | rectangle(50, 35, 51, 36), rectangle(0, 0, 0, 0)).boxes()
    assert boxes[0].tolist() == [10.0, 5.0, 30.0, 25.0]
    assert boxes[1].isnan().all()


def test_backgrounds_touch_every_border() -> None:
    frame = ~rectangle(10, 10, 30, 30)
    masks = masks_of(frame, rectangle(0, 0, 60, 39), rectangle(0, 0, 60, 40))
    assert masks.touch_every_border().tolist() == [True, False, True]
