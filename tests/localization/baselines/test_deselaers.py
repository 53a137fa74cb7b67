"""Deselaers et al.: the pair cues are their definition, the pair scores of the paper do not leak in."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import found_fraction, plain, plain_transfer, planted_scores, planted_store, planted_target, planted_truth
from pairloc.localization.baselines.deselaers import CuePairs, deselaers
from pairloc.localization.engine import learn_source, localize_target
from pairloc.settings import DeselaersSettings

SETTINGS = DeselaersSettings(rounds=2, features=plain("class"))


def test_pair_cues_are_their_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(4, 3, 5, generator=generator, dtype=torch.float64)
    aspect = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    pairs = CuePairs(features, aspect, appearance=2.0, shape=0.7)

    def score(i: int, b: int, j: int, c: int) -> float:
        cosine = torch.nn.functional.cosine_similarity(features[i, b], features[j, c], dim=0)
        return float(2.0 * cosine - 0.7 * (aspect[i, b] - aspect[j, c]) ** 2)

    block = pairs.block(torch.tensor([0, 1]), torch.tensor([2, 0]))
    for n, (i, j) in enumerate(((0, 2), (1, 0))):
        for b in range(3):
            for c in range(3):
                assert float(block[n, b, c]) == pytest.approx(score(i, b, j, c) + score(j, c, i, b))
    bags, chosen_bags, chosen = torch.tensor([0, 3]), torch.tensor([0, 1, 2]), torch.tensor([2, 0, 1])
    weights = torch.tensor([[1.0, 0.5], [2.0, -1.0], [0.3, 1.0]], dtype=torch.float64)
    sums = pairs.against(bags, chosen_bags, chosen, weights)
    assert torch.allclose(pairs.against(bags, chosen_bags, chosen, weights[:, 0]), sums[0])
    for g in range(2):
        for n, i in enumerate(bags.tolist()):
            for b in range(3):
                expected = sum(
                    float(weights[m, g]) * 2 * score(i, b, int(chosen_bags[m]), int(chosen[m]))
                    for m in range(3)
                    if int(chosen_bags[m]) != i
                )
                assert float(sums[g, n, b]) == pytest.approx(expected)


def test_it_finds_planted_objects_better_than_objectness(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", classes=3, bags=45)
    transfer = planted_scores(target, shown)
    with torch.no_grad():  # objectness that is mostly noise
        transfer.unary.linear.weight.mul_(0.02)
    outcome = deselaers(target, transfer, SETTINGS)
    assert found_fraction(target, shown, outcome.state.selection) > 0.8


def found_by(tmp_path: Path, objectness: float, **settings: float) -> float:
    """Fraction of planted objects found without pair cues, with blurred objectness times `objectness`."""
    target, shown = planted_target(tmp_path / "s", classes=3, bags=45)
    transfer = planted_scores(target, shown)
    torch.manual_seed(0)
    with torch.no_grad():
        weight = transfer.unary.linear.weight
        weight.copy_(objectness * weight + 0.05 * torch.randn_like(weight))
    plain_cues = SETTINGS.model_copy(update={"similar_appearance": 0.0, "similar_shape": 0.0, **settings})
    return found_fraction(target, shown, deselaers(target, transfer, plain_cues).state.selection)


def test_the_appearance_learned_from_the_boxes_finds_more_than_objectness(tmp_path: Path) -> None:
    only = {"shape": 0.0, "adapt": 0.0}
    found = found_by(tmp_path / "a", 0.05, rounds=2, **only)
    assert found > found_by(tmp_path / "b", 0.05, rounds=0, **only) + 0.3


def test_adapted_weights_make_up_for_a_misleading_cue(tmp_path: Path) -> None:
    """The shape of planted objects is random, so a large weight of it misleads unless the class adapts it."""
    found = found_by(tmp_path / "a", 1.0, rounds=2, shape=5.0, adapt=1.0)
    assert found > found_by(tmp_path / "b", 1.0, rounds=2, shape=5.0, adapt=0.0) + 0.3


def test_pair_scores_do_not_leak_in(tmp_path: Path) -> None:
    """Other relation networks and other settings of the energy change nothing; other objectness does."""
    store, shown = planted_store(tmp_path / "s", bags=24)
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=5))
    before = localize_target(store, store.dataset, learned, SETTINGS, method="deselaers").boxes
    with torch.no_grad():
        for parameter in learned.scores.relation.parameters():
            parameter.fill_(torch.nan)
    after = localize_target(store, store.dataset, learned, SETTINGS, method="deselaers").boxes
    assert np.array_equal(before.boxes, after.boxes)
    assert np.array_equal(before.score, after.score)
    with torch.no_grad():
        learned.scores.unary.linear.weight.mul_(-100)
    other = localize_target(store, store.dataset, learned, SETTINGS, method="deselaers").boxes
    assert not np.array_equal(before.boxes, other.boxes)


@pytest.mark.parametrize("bags", [1, 2, 3])
def test_tiny_classes_work(tmp_path: Path, bags: int) -> None:
    target, _ = planted_target(tmp_path / "s", classes=1, bags=bags)
    transfer = planted_scores(planted_target(tmp_path / "t", classes=2, bags=8)[0], np.zeros(8, dtype=np.int64))
    outcome = deselaers(target, transfer, SETTINGS)
    assert len(outcome.state.selection[0]) == bags
    assert torch.isfinite(outcome.confidence[0]).all()
