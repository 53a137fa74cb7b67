"""Exclusion: the best choice of different proposals, against trying all of them."""

import itertools

import pytest
import torch

from pairloc.inference.exclusion import distinct


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_the_cheapest_of_all_that_keep_the_tags_apart(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tags, size = 1 + seed % 4, 5
    cost = torch.randn(tags, size, generator=generator)
    cost[torch.rand(tags, size, generator=generator) < 0.2] = torch.inf
    cost[:, 0] = 3.0  # there is always one that may be selected
    near = torch.rand(size, size, generator=generator) < 0.3
    apart = ~(near | near.T) & ~torch.eye(size, dtype=torch.bool)
    found = distinct(cost, apart)
    totals = {
        choice: float(sum(cost[tag, proposal] for tag, proposal in enumerate(choice)))
        for choice in itertools.product(range(size), repeat=tags)
        if all(apart[a, b] for a, b in itertools.combinations(choice, 2))
    }
    possible = {choice: total for choice, total in totals.items() if total < torch.inf}
    if possible:
        assert totals[tuple(found.tolist())] == pytest.approx(min(possible.values()))
    else:
        assert found.tolist() == cost.argmin(dim=1).tolist()


def test_a_single_tag_takes_its_cheapest_proposal() -> None:
    assert distinct(torch.tensor([[2.0, 1.0, 3.0]]), torch.zeros(3, 3, dtype=torch.bool)).tolist() == [1]


def test_many_tags_that_want_the_same_box_get_different_ones_without_trying_everything() -> None:
    """With equal costs nothing can be ruled out, and 14 tags of 60 proposals would have 60^14 choices."""
    generator = torch.Generator().manual_seed(0)
    cost = torch.rand(60, generator=generator).expand(14, -1)
    near = torch.rand(60, 60, generator=generator) < 0.1
    apart = ~(near | near.T) & ~torch.eye(60, dtype=torch.bool)
    found = distinct(cost, apart).tolist()
    assert all(apart[a, b] for a, b in itertools.combinations(found, 2))
    assert found[0] != found[1]
