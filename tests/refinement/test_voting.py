"""Refinement: a mean of what overlaps, and nothing else."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import planted_target
from pairloc.boxes import iou
from pairloc.errors import InputError
from pairloc.localization.methods import METHODS, run_method, settings_of
from pairloc.localization.refining import refined
from pairloc.localization.transfer import Labels, learn_transfer
from pairloc.refinement.voting import mean_box
from pairloc.settings import LearningSettings, TransferSettings


def made(seed: int, m: int = 5, b: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    corner = 20 * torch.rand(m, b, 2, generator=generator)
    boxes = torch.cat([corner, corner + 5 + 20 * torch.rand(m, b, 2, generator=generator)], dim=2)
    return boxes, torch.randn(m, b, generator=generator), torch.randint(b, (m,), generator=generator)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**30), st.floats(0.1, 0.9))
def test_it_is_the_weighted_mean_written_out(seed: int, least: float) -> None:
    boxes, scores, chosen = made(seed)
    own = boxes[torch.arange(5), chosen]
    found = mean_box(own, boxes, scores, least)
    for bag in range(5):
        overlap = iou(own[bag : bag + 1].double().numpy(), boxes[bag].double().numpy())[0]
        some = torch.from_numpy(overlap >= least)
        weight = torch.exp(2 * scores[bag][some])
        mean = (weight[:, None] * boxes[bag][some]).sum(dim=0) / weight.sum()
        torch.testing.assert_close(found[bag], mean, atol=1e-4, rtol=1e-4)


def test_a_proposal_far_above_the_others_stays_and_one_that_is_not_there_does_not_count() -> None:
    boxes, scores, chosen = made(1)
    rows = torch.arange(5)
    own = boxes[rows, chosen]
    scores[rows, chosen] = 60.0
    torch.testing.assert_close(mean_box(own, boxes, scores, 0.3), own)
    scores = torch.full_like(scores, -torch.inf)
    torch.testing.assert_close(mean_box(own, boxes, scores, 0.3), own)
    scores[rows, chosen] = 0.0
    torch.testing.assert_close(mean_box(own, boxes, scores, 0.3), own)


def test_no_method_selects_a_proposal_larger_than_the_largest(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "store", bags=20)
    labels = torch.full((target.transfer.count, target.transfer.size), -1)
    labels[torch.arange(len(shown)), torch.from_numpy(shown)] = torch.arange(len(shown)) % len(target.classes)
    transfer, _ = learn_transfer(target.transfer, Labels.of(labels), TransferSettings(steps=5, pairs=8))
    largest = float(target.transfer.share[target.transfer.valid].median())
    plain = LearningSettings(steps=5, pairs=8, rounds=1, folds=2, k=4)
    for method in METHODS:
        above = []
        for own in (plain, plain.model_copy(update={"largest": largest})):
            selection = run_method(method, target, transfer, own).selection
            pairs = list(zip(target.positives, selection, strict=True))
            above.append(any((target.transfer.share[bags, chosen] > largest).any() for bags, chosen in pairs))
        assert above == [True, False]


@pytest.mark.parametrize("method", ["best", "fine-tuned"])
def test_a_method_that_bags_alone_cannot_do_is_refused(method: str) -> None:
    with pytest.raises(InputError, match=f"there is no method '{method}'; known are warm-up-unary"):
        settings_of(method, LearningSettings())


def test_without_the_setting_boxes_are_the_selected_ones(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "store", bags=20)
    labels = torch.full((target.transfer.count, target.transfer.size), -1)
    labels[torch.arange(len(shown)), torch.from_numpy(shown)] = torch.arange(len(shown)) % len(target.classes)
    transfer, _ = learn_transfer(target.transfer, Labels.of(labels), TransferSettings(steps=5, pairs=8))
    plain = LearningSettings(steps=5, pairs=8, rounds=1, folds=2, k=4)
    for method in ("warm-up", "full"):
        state = run_method(method, target, transfer, plain)
        for label, boxes in enumerate(refined(target, transfer, state, settings_of(method, plain))):
            assert torch.equal(boxes, target.boxes(state.selection, label))
        moved = refined(target, transfer, state, settings_of(method, plain.model_copy(update={"refine": 0.01})))
        assert [len(boxes) for boxes in moved] == [len(bags) for bags in target.positives]
        assert all(torch.isfinite(boxes).all() for boxes in moved)
