"""Box voting against a mean written out, and the chain of refinements."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import plain_settings, plain_transfer, planted_scores, planted_target, recipe
from pairloc import refinement
from pairloc.boxes import iou
from pairloc.refinement import Candidates, refine
from pairloc.refinement.voting import mean_box
from pairloc.settings import BoxSettings


def random_boxes(seed: int, m: int = 5, b: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    corner = 20 * torch.rand(m, b, 2, generator=generator)
    boxes = torch.cat([corner, corner + 5 + 20 * torch.rand(m, b, 2, generator=generator)], dim=2)
    return boxes, torch.randn(m, b, generator=generator), torch.randint(b, (m,), generator=generator)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**30), st.floats(0.1, 0.9))
def test_voting_equals_the_weighted_mean_written_out(seed: int, min_iou: float) -> None:
    boxes, scores, chosen = random_boxes(seed)
    selected = boxes[torch.arange(5), chosen]
    result = mean_box(selected, boxes, scores, min_iou)
    for bag in range(5):
        overlap = iou(selected[bag : bag + 1].double().numpy(), boxes[bag].double().numpy())[0]
        mask = torch.from_numpy(overlap >= min_iou)
        weight = torch.exp(2 * scores[bag][mask])
        mean = (weight[:, None] * boxes[bag][mask]).sum(dim=0) / weight.sum()
        torch.testing.assert_close(result[bag], mean, atol=1e-4, rtol=1e-4)


def test_a_dominant_proposal_stays_and_excluded_proposals_do_not_count() -> None:
    boxes, scores, chosen = random_boxes(1)
    rows = torch.arange(5)
    selected = boxes[rows, chosen]
    scores[rows, chosen] = 60.0
    torch.testing.assert_close(mean_box(selected, boxes, scores, 0.3), selected)
    scores = torch.full_like(scores, -torch.inf)
    torch.testing.assert_close(mean_box(selected, boxes, scores, 0.3), selected)
    scores[rows, chosen] = 0.0
    torch.testing.assert_close(mean_box(selected, boxes, scores, 0.3), selected)


@pytest.mark.parametrize("method", ["warm-up", "full"])
def test_boxes_are_the_selected_proposals_if_voting_is_off(tmp_path: Path, method: str) -> None:
    target, shown = planted_target(tmp_path / "store", bags=20)
    transfer = planted_scores(target, shown, plain_transfer(steps=5))
    outcome = recipe(method, target, transfer, plain_settings(rounds=1, folds=2, training={"steps": 5}))
    for label, bags in enumerate(target.positives):
        selected = target.selected_boxes(outcome.state.selection, label)
        candidates = Candidates(target.boxes(label), outcome.scores[label])
        assert torch.equal(refine(selected, candidates, outcome.boxes), selected)
        moved = refine(selected, candidates, BoxSettings(voting_iou=0.01))
        assert moved.shape == (len(bags), 4)
        assert torch.isfinite(moved).all()
        assert not torch.equal(moved, selected)
        expected = mean_box(selected, candidates.boxes, candidates.scores, 0.01)
        assert torch.equal(moved, expected)


def test_a_class_without_bags_has_no_boxes() -> None:
    empty = torch.zeros(0, 4)
    assert refine(empty, Candidates(torch.zeros(0, 6, 4), torch.zeros(0, 6)), BoxSettings()).shape == (0, 4)


def test_refinements_are_applied_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(boxes: torch.Tensor, candidates: Candidates, settings: BoxSettings) -> torch.Tensor:
        return boxes + 1

    def doubled(boxes: torch.Tensor, candidates: Candidates, settings: BoxSettings) -> torch.Tensor:
        return boxes * 2

    monkeypatch.setattr(refinement, "CHAIN", (moved, doubled))
    boxes, scores, _ = random_boxes(0)
    assert torch.equal(refine(boxes[:, 0], Candidates(boxes, scores), BoxSettings()), 2 * (boxes[:, 0] + 1))
