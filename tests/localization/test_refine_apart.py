"""Refining keeps the tags of an image apart: by hand, and for random boxes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pairloc.boxes import iou
from pairloc.localization.exclusion import refine_apart
from pairloc.localization.sharing import SHARED_IOU

POSITIVES = (torch.tensor([0, 1]), torch.tensor([1, 2]))  # image 1 has both tags


def boxes(*rows: tuple[float, float, float, float]) -> torch.Tensor:
    return torch.tensor(rows)


def test_boxes_that_refining_moved_together_go_back() -> None:
    selected = boxes((0, 0, 10, 10), (0, 0, 10, 10)), boxes((8, 8, 20, 20), (0, 0, 10, 10))
    refined = boxes((1, 1, 11, 11), (4, 4, 14, 14)), boxes((4, 4, 14, 14), (1, 1, 11, 11))
    first, second = refine_apart(POSITIVES, selected, refined)
    assert torch.equal(first, torch.stack([refined[0][0], selected[0][1]]))  # image 0 has one tag
    assert torch.equal(second, torch.stack([selected[1][0], refined[1][1]]))


def test_boxes_that_were_shared_before_stay_refined() -> None:
    selected = boxes((0, 0, 10, 10), (0, 0, 10, 10)), boxes((0, 0, 10, 10), (0, 0, 10, 10))
    refined = boxes((1, 1, 11, 11), (4, 4, 14, 14)), boxes((4, 4, 14, 14), (1, 1, 11, 11))
    after = refine_apart(POSITIVES, selected, refined)
    assert all(torch.equal(a, b) for a, b in zip(after, refined, strict=True))


@settings(deadline=None)
@given(st.integers(0, 2**30))
def test_only_pairs_that_were_shared_before_may_be_afterwards(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    corner = 4 * torch.rand(2, 3, 6, 2, generator=generator)
    table = torch.cat([corner, corner + 5], dim=3)  # selected and refined boxes of 3 tags in 6 images
    positives = (torch.arange(6),) * 3
    selected, refined = tuple(table[0]), tuple(table[1])
    after = refine_apart(positives, selected, refined)
    assert not any(table.data_ptr() == other.data_ptr() for table in after for other in refined)
    for image in range(6):
        old, new = (torch.stack([boxes[image] for boxes in by_tag]) for by_tag in (selected, after))
        moved = torch.stack([boxes[image] for boxes in refined])
        assert ((new == old) | (new == moved)).all()
        alone = (new == old).all(dim=1)
        both_back = alone[:, None] & alone
        assert (iou(new, new)[both_back] - iou(old, old)[both_back]).abs().max() == 0 if both_back.any() else True
        both_moved = ~alone[:, None] & ~alone
        assert (((iou(new, new) > SHARED_IOU) & both_moved) <= (iou(old, old) > SHARED_IOU)).all()
