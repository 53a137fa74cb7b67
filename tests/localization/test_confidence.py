"""Confidence: the curve increases, and correct boxes have a higher confidence."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain_settings, plain_transfer, planted_scores, planted_target, recipe
from pairloc.errors import InputError
from pairloc.localization.confidence import Calibration, confidence, evidence_signals, plain_signals
from pairloc.localization.evidence import Terms
from pairloc.localization.learned import Learned
from pairloc.localization.methods import METHODS

SETTINGS = plain_settings(rounds=1, folds=2, training={"steps": 20})


def test_fitting_recovers_the_true_curve() -> None:
    generator = torch.Generator().manual_seed(0)
    true = Calibration(bias=-1.5, scale=1.2)
    agreement, gap = torch.rand(20_000, generator=generator), torch.rand(20_000, generator=generator) * 4
    correct = torch.rand(20_000, generator=generator) < true(agreement, gap)
    fitted = Calibration.fit(agreement, gap, correct)
    assert (fitted.bias, fitted.scale) == pytest.approx((true.bias, true.scale), abs=0.15)


def test_a_fitted_curve_always_increases() -> None:
    generator = torch.Generator().manual_seed(1)
    agreement, gap = torch.rand(1000, generator=generator), torch.rand(1000, generator=generator)
    fitted = Calibration.fit(agreement, gap, agreement + gap < 0.8)
    assert fitted.scale > 0
    assert float(fitted(agreement, gap).mean()) == pytest.approx(
        float((agreement + gap < 0.8).double().mean()), abs=0.05
    )


def test_too_little_data_gives_the_default_curve() -> None:
    few = torch.rand(10)
    assert Calibration.fit(few, few, few > 0.5) == Calibration()
    many = torch.rand(500)
    assert Calibration.fit(many, many, torch.ones(500, dtype=torch.bool)) == Calibration()


def test_known_tags_have_a_level_of_their_own() -> None:
    """New tags lack the term of their own class; the same signals otherwise mean more for known tags."""
    names = ("transfer score", "objectness", "recurrence", "elsewhere", "own class")
    table, scores = torch.randn(5, 4, 5, generator=torch.Generator().manual_seed(0)), torch.rand(5, 4)
    chosen, probability = torch.tensor([0, 3, 1, 2, 0]), torch.full((5,), 0.6)
    known = evidence_signals(Terms(names, table), scores, probability, chosen)
    new = evidence_signals(Terms(names[:4], table[..., :4]), scores, probability, chosen)
    assert known["known tag"].tolist() == [1.0] * 5
    assert new["known tag"].tolist() == [0.0] * 5
    assert known["own class"].tolist() == pytest.approx(table[range(5), chosen.tolist(), 4].tolist())
    assert bool(new["own class"].isnan().all())
    for signals in (known, new):
        signals |= plain_signals(torch.ones(5), torch.ones(5))
    both = {name: torch.cat([known[name], new[name]]).repeat(40) for name in known}
    correct = (torch.cat([torch.ones(5), torch.zeros(5)]).repeat(40) * torch.rand(400)) > 0.2
    fitted = Calibration.fit_signals(both, correct)
    assert float(fitted.of_signals(known).min()) > 0.6 > 0.2 > float(fitted.of_signals(new).max())


def test_the_confidence_is_halved_for_a_class_of_one_bag() -> None:
    agreement, gap = torch.tensor([1.0], dtype=torch.float64), torch.tensor([torch.inf])
    alone = confidence(Calibration(), plain_signals(agreement, gap))
    both = confidence(Calibration(), plain_signals(agreement.repeat(2), gap.repeat(2)))
    assert torch.isfinite(alone).all()
    torch.testing.assert_close(2 * alone, both[:1])


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].needs_classifiers])
def test_correct_boxes_have_a_higher_confidence(tmp_path: Path, method: str) -> None:
    target, shown = planted_target(tmp_path / "s", classes=4, bags=80, noise=0.9)
    outcome = recipe(method, target, planted_scores(target, shown), SETTINGS)
    all_confidences = torch.cat(outcome.confidence)
    assert ((all_confidences >= 0) & (all_confidences <= 1)).all()
    assert [len(entry) for entry in outcome.confidence] == [len(bags) for bags in target.positives]
    selection = outcome.state.selection
    correct = torch.cat([selection[c] == torch.from_numpy(shown)[b] for c, b in enumerate(target.positives)])
    if method in ("warm-up", "full") and 3 < int(correct.sum()) < 77:
        assert float(all_confidences[correct].mean()) > float(all_confidences[~correct].mean())
    views = 2 + bool(outcome.state.scores)
    for votes in outcome.agreement:
        assert np.isin((votes * views).round(decimals=6), np.arange(views + 1)).all()


def test_the_calibration_changes_the_confidence_only(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", bags=24)
    learned = Learned(planted_scores(target, shown, plain_transfer(steps=20)))
    plain = recipe("full", target, learned, SETTINGS)
    other = recipe("full", target, learned.calibrated(Calibration(bias=1.0, scale=0.5)), SETTINGS)
    assert all(map(torch.equal, plain.state.selection, other.state.selection))
    assert all(map(torch.equal, plain.agreement, other.agreement))
    assert all(bool((a > b).all()) for a, b in zip(other.confidence, plain.confidence, strict=True))


def test_a_saved_curve_is_loaded_and_a_missing_one_is_the_default(tmp_path: Path) -> None:
    assert Calibration.load(tmp_path) == Calibration()
    curve = Calibration(bias=0.25, scale=1.5)
    curve.save(tmp_path)
    assert Calibration.load(tmp_path) == curve
    (tmp_path / "calibration.json").write_text('{"bias": "high", "scale": 1}')
    with pytest.raises(InputError, match="bias: Input should be a valid number"):
        Calibration.load(tmp_path)


def test_saved_scores_and_calibration_are_loaded_unchanged(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", bags=12)
    scores = planted_scores(target, shown, plain_transfer(steps=2))
    learned = Learned(scores, Calibration(bias=1.0, scale=2.0), [{"step": 1.0}])
    learned.save(tmp_path / "w")
    again = Learned.load(tmp_path / "w")
    assert again.calibration == learned.calibration
    assert again.curve is None
    assert replace(again, scores=scores, curve=learned.curve) == learned
    for name, tensor in scores.state_dict().items():
        assert torch.equal(tensor, again.scores.state_dict()[name])
