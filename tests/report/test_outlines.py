"""Masks on the page: the drawn path covers the mask, and damaged files are refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairloc.datasets.dataset import Dataset, Image
from pairloc.errors import InputError
from pairloc.formats.rle import encode
from pairloc.report.outlines import Outline, outline, read_outlines

DATASET = Dataset((Image(7, "a.png", (6, 4)), Image(9, "b.png", (6, 4))), ("cat", "dog"), ((0, 1), (1,)), (3, 5))
MASK = np.array([[0, 1, 1, 0, 0, 0], [0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0]], dtype=np.bool_)


def painted(drawn: Outline) -> np.ndarray:
    """The cells inside the path."""
    cells = np.zeros(drawn.grid[::-1], dtype=np.bool_)
    for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", drawn.path):
        cells[int(y), int(x) : int(x) + int(length)] = True
    return cells


@settings(deadline=None)
@given(st.integers(0, 2**30), st.integers(1, 30), st.integers(1, 30))
def test_the_path_covers_a_small_mask_cell_by_cell(seed: int, height: int, width: int) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < 0.5
    assert np.array_equal(painted(outline(mask)), mask)


def test_a_large_mask_is_drawn_on_a_coarse_grid() -> None:
    mask = np.zeros((900, 1600), dtype=np.bool_)
    mask[300:600, 400:1200] = True
    drawn = outline(mask)
    assert drawn.grid == (160, 90)
    expected = np.zeros((90, 160), dtype=np.bool_)
    expected[30:60, 40:120] = True
    assert np.array_equal(painted(drawn), expected)


def entry(**changes: object) -> dict[str, object]:
    mask = {"size": [4, 6], "counts": encode(MASK)}
    return {"image_id": 9, "category_id": 5, "bbox": [0, 0, 1, 1], "segmentation": mask} | changes


def test_masks_are_read_by_image_and_class(tmp_path: Path) -> None:
    without = {name: value for name, value in entry(category_id=3).items() if name != "segmentation"}
    content = {"annotations": [entry(), without, entry(image_id=11)]}
    (tmp_path / "masks.json").write_text(json.dumps(content))
    turned = Dataset(DATASET.images[::-1], ("dog", "cat"), ((0,), (0, 1)), (5, 3))
    found = read_outlines(tmp_path, DATASET, turned)
    assert list(found) == [(0, 0)]
    assert np.array_equal(painted(found[0, 0]), MASK)


def test_no_file_has_no_masks(tmp_path: Path) -> None:
    assert read_outlines(tmp_path, DATASET, DATASET) == {}


@pytest.mark.parametrize(
    "content",
    [
        "[]", "{", '{"annotations": 3}',
        json.dumps({"annotations": [entry(segmentation={"size": [4, 6], "counts": "x"})]}),
        json.dumps({"annotations": [entry(segmentation={"size": [4], "counts": ""})]}),
        json.dumps({"annotations": [entry(segmentation={"size": [-4, -6], "counts": ""})]}),
        json.dumps({"annotations": [entry(segmentation={"size": [10**9, 10**9], "counts": encode(MASK)})]}),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "masks.json").write_text(content)
    with pytest.raises(InputError):
        read_outlines(tmp_path, DATASET, DATASET)
