"""Exclusion on a target: tags that share a box are taken apart, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import plain_settings, recipe
from pairloc.boxes import iou
from pairloc.localization.exclusion import keep_apart
from pairloc.localization.functions import TransferScores
from pairloc.localization.target import Target

Planted = tuple[Target, np.ndarray, TransferScores]


@pytest.fixture
def several(planted: Planted) -> Target:
    """Return a target in which every third image has all tags."""
    target = planted[0]
    tagged = target.tagged.clone()
    tagged[::3] = True
    return replace(target, tagged=tagged, positives=tuple(torch.nonzero(column)[:, 0] for column in tagged.T))


@pytest.mark.parametrize("seed", range(10))
def test_only_images_whose_tags_share_a_box_change(several: Target, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    costs = tuple(torch.randn(len(bags), several.bags.size, generator=generator) for bags in several.positives)
    selection = tuple(cost.argmin(dim=1) for cost in costs)
    found = keep_apart(several, selection, costs, 0.5)
    changed = 0
    for bag in range(several.bags.count):
        tags = [c for c, bags in enumerate(several.positives) if (bags == bag).any()]
        before, after = ([int(chosen[c][several.positives[c] == bag]) for c in tags] for chosen in (selection, found))
        boxes = several.bags.boxes[bag]
        overlap = iou(boxes, boxes)

        def shared(choice: list[int], overlap: torch.Tensor = overlap) -> bool:
            return any(overlap[a, b] > 0.5 for n, a in enumerate(choice) for b in choice[:n])

        assert not shared(after)
        assert shared(before) or before == after
        changed += before != after
    assert changed


def test_without_exclusion_tags_may_share_a_box(several: Target, planted: Planted) -> None:
    """With it, no image of the result does."""
    shares = []
    for limit in (1.0, 0.5):
        state = recipe("warm-up", several, planted[2], plain_settings(exclusion_iou=limit)).state
        chosen = torch.stack(
            [selection[bags % 3 == 0] for selection, bags in zip(state.selection, several.positives, strict=True)]
        )
        boxes = several.bags.boxes[torch.arange(0, several.bags.count, 3), chosen].transpose(0, 1)  # (n, C, 4)
        overlap = iou(boxes, boxes) - torch.eye(len(several.classes))
        shares.append(int((overlap.flatten(1) > 0.5).any(dim=1).sum()))
    assert shares[0] > 0
    assert shares[1] == 0
