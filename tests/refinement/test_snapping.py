"""Snapping: which boxes move to the edges of their masks, and which stay."""

import torch

from pairloc.refinement.masks import Masks
from pairloc.refinement.snapping import snap
from pairloc.settings import SnapSettings

SETTINGS = SnapSettings(min_iou=0.5)
BOX = torch.tensor([[10.0, 10.0, 50.0, 50.0]])


def mask(x1: int, y1: int, x2: int, y2: int) -> Masks:
    table = torch.zeros(1, 60, 80, dtype=torch.bool)
    table[:, y1:y2, x1:x2] = True
    return Masks(table, (80, 60), torch.ones(1), torch.ones(1))


def test_a_box_moves_to_the_edges_of_its_mask() -> None:
    after, moved = snap(BOX, mask(14, 12, 46, 50), SETTINGS)
    assert moved.tolist() == [True]
    assert after.tolist() == [[14.0, 12.0, 46.0, 50.0]]


def test_a_box_on_its_edges_stays_where_it_is() -> None:
    after, moved = snap(BOX, mask(10, 10, 50, 50), SETTINGS)
    assert moved.tolist() == [True]
    assert torch.equal(after, BOX)


def test_a_box_stays_if_its_mask_says_nothing_about_it() -> None:
    useless = {
        "empty": mask(0, 0, 0, 0),
        "elsewhere": mask(60, 40, 80, 60),
        "a part": mask(10, 10, 20, 20),
    }
    for why, masks in useless.items():
        after, moved = snap(BOX, masks, SETTINGS)
        assert not moved.any(), why
        assert torch.equal(after, BOX), why


def test_a_background_moves_no_box() -> None:
    large = torch.tensor([[1.0, 1.0, 79.0, 59.0]])
    after, moved = snap(large, mask(0, 0, 80, 60), SETTINGS)
    assert not moved.any()
    assert torch.equal(after, large)


def test_without_a_limit_only_empty_masks_and_backgrounds_move_nothing() -> None:
    free = SnapSettings(min_iou=0.0)
    assert snap(BOX, mask(60, 40, 80, 60), free)[1].all()
    assert not snap(BOX, mask(0, 0, 0, 0), free)[1].any()


def test_no_boxes() -> None:
    nothing = Masks(torch.zeros(0, 60, 80, dtype=torch.bool), (80, 60), torch.zeros(0), torch.zeros(0))
    after, moved = snap(torch.zeros(0, 4), nothing, SETTINGS)
    assert after.shape == (0, 4)
    assert moved.shape == (0,)
