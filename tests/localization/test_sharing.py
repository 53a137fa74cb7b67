"""Shared boxes: at most one of two tags is right, and nobody else's confidence changes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pairloc.localization.sharing import Sharing, at_most_one, share_confidence

probabilities = st.floats(0, 1)
PAIR = torch.tensor([[False, True], [True, False]])


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(probabilities, probabilities)
def test_of_two_tags_that_share_a_box_at_most_one_is_right(p: float, q: float) -> None:
    """Both are lowered, their sum is a probability, their order stays."""
    one, other = at_most_one(tensor(p, q), PAIR).tolist()
    assert 0 <= one <= p + 1e-6
    assert 0 <= other <= q + 1e-6
    assert one + other <= 1 + 1e-9
    assert (one - other) * (p - q) >= 0
    if 0 < p < 0.999 and 0 < q < 0.999:
        assert one == pytest.approx(p * (1 - q) / (1 - p * q))
        assert other == pytest.approx(q * (1 - p) / (1 - p * q))


def test_two_certain_tags_get_one_half_each() -> None:
    assert at_most_one(tensor(1, 1), PAIR).tolist() == pytest.approx([0.5, 0.5])


@given(st.lists(probabilities, min_size=1, max_size=4))
def test_a_tag_without_a_partner_stays_as_it_is(values: list[float]) -> None:
    alone = torch.zeros(len(values), len(values), dtype=torch.bool)
    assert at_most_one(tensor(*values), alone).tolist() == values


@given(st.lists(st.floats(0.01, 0.99), min_size=2, max_size=5))
def test_the_probabilities_are_those_of_the_possible_worlds(values: list[float]) -> None:
    """For tags that all share one box: a slow sum over none or exactly one of them being right."""
    count = len(values)
    shared = ~torch.eye(count, dtype=torch.bool)
    worlds = []
    for right in (None, *range(count)):
        weight = 1.0
        for index, value in enumerate(values):
            weight *= value if index == right else 1 - value
        worlds.append(weight)
    expected = [weight / sum(worlds) for weight in worlds[1:]]
    assert at_most_one(tensor(*values), shared).tolist() == pytest.approx(expected)


def test_only_tags_of_one_image_with_one_box_are_lowered() -> None:
    """Image 0 has two tags with one box, image 1 two with different boxes, image 2 one tag."""
    box, moved, far = [0.0, 0, 10, 10], [0.0, 0, 10, 9], [50.0, 50, 60, 60]
    positives = (torch.tensor([0, 1, 2]), torch.tensor([0, 1]))
    boxes = (torch.tensor([box, box, box]), torch.tensor([moved, far]))
    confidence = (tensor(0.8, 0.7, 0.6), tensor(0.5, 0.4))
    lowered, sharing = share_confidence(positives, boxes, confidence)
    assert sharing == Sharing(1, 2)
    assert lowered[0].tolist() == pytest.approx([0.8 * 0.5 / 0.6, 0.7, 0.6])
    assert lowered[1].tolist() == pytest.approx([0.5 * 0.2 / 0.6, 0.4])
    assert confidence[0].tolist() == [0.8, 0.7, 0.6]  # the input is not changed
    message = "in 1 of 2 images with several tags two tags share a box; their confidence is lowered"
    assert sharing.message == message


def test_without_images_or_shared_boxes_nothing_is_said() -> None:
    lowered, sharing = share_confidence((), (), ())
    assert (lowered, sharing.message) == ((), None)
    nobody = (torch.zeros(0, dtype=torch.int64),)
    assert share_confidence(nobody, (torch.zeros(0, 4),), (tensor(),))[1] == Sharing(0, 0)
