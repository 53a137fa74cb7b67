"""Refining keeps the tags of an image apart: by hand, and for random boxes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pairloc.boxes import iou
from pairloc.localization.exclusion import refine_apart
from pairloc.localization.sharing import SHARED_IOU

POSITIVES = (torch.tensor([0, 1]), torch.tensor([1, 2]))  # image 1 has both tags


def boxes(*rows: tuple[float, float, float, float]) -> Tensor:
    return torch.tensor(rows)


def test_the_less_confident_of_two_boxes_that_refining_made_one_goes_back() -> None:
    selected = boxes((0, 0, 10, 10), (0, 0, 10, 10)), boxes((8, 8, 20, 20), (0, 0, 10, 10))
    refined = boxes((1, 1, 11, 11), (4, 4, 14, 14)), boxes((4, 4, 14, 14), (1, 1, 11, 11))
    sure = torch.tensor([0.1, 0.6]), torch.tensor([0.5, 0.9])
    first, second = refine_apart(POSITIVES, selected, refined, sure)
    assert torch.equal(first, refined[0])  # image 0 has one tag, and in image 1 it is the more confident one
    assert torch.equal(second, torch.stack([selected[1][0], refined[1][1]]))
    turned = refine_apart(POSITIVES, selected, refined, (torch.zeros(2), torch.ones(2)))
    assert torch.equal(turned[0], torch.stack([refined[0][0], selected[0][1]]))
    assert torch.equal(turned[1], refined[1])


def test_no_tags() -> None:
    nothing = (torch.zeros(0, dtype=torch.int64),), (torch.zeros(0, 4),)
    (after,) = refine_apart(nothing[0], nothing[1], nothing[1], (torch.zeros(0),))
    assert after.shape == (0, 4)


@settings(deadline=None)
@given(st.integers(0, 2**30))
def test_a_box_is_refined_unless_it_is_that_of_a_more_confident_tag(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    corner = 4 * torch.rand(2, 3, 6, 2, generator=generator)
    table = torch.cat([corner, corner + 5], dim=3)  # selected and refined boxes of 3 tags in 6 images
    confidence = tuple(torch.rand(3, 6, generator=generator))
    selected, refined = tuple(table[0]), tuple(table[1])
    after = refine_apart((torch.arange(6),) * 3, selected, refined, confidence)
    for image in range(6):
        order = sorted(range(3), key=lambda tag: -float(confidence[tag][image]))
        for rank, tag in enumerate(order):
            better = torch.stack([after[other][image] for other in order[:rank]]) if rank else torch.zeros(0, 4)
            is_taken = bool((iou(refined[tag][image][None], better) > SHARED_IOU).any())
            expected = selected if is_taken else refined
            assert torch.equal(after[tag][image], expected[tag][image])
