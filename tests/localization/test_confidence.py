from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import planted_target
from pairloc.localization.confidence import Calibration, agreement, calibrate, confidence
from pairloc.localization.methods import METHODS, run_method, settings_of
from pairloc.localization.transfer import Labels, learn_transfer
from pairloc.settings import LearningSettings, TransferSettings

SETTINGS = LearningSettings(steps=20, pairs=8, lr=0.01, rounds=1, folds=2, k=4)


def test_a_fitted_curve_gives_back_the_probabilities_it_was_drawn_from() -> None:
    generator = torch.Generator().manual_seed(0)
    true = Calibration(-1.5, 1.2)
    agree, gap = torch.rand(20_000, generator=generator), torch.rand(20_000, generator=generator) * 4
    right = torch.rand(20_000, generator=generator) < true(agree, gap)
    fitted = Calibration.fit(agree, gap, right)
    assert vars(fitted) == pytest.approx(vars(true), abs=0.15)


def test_a_curve_rises_whatever_it_is_fitted_to() -> None:
    generator = torch.Generator().manual_seed(1)
    agree, gap = torch.rand(1000, generator=generator), torch.rand(1000, generator=generator)
    fitted = Calibration.fit(agree, gap, agree + gap < 0.8)
    assert fitted.scale > 0
    assert float(fitted(agree, gap).mean()) == pytest.approx(float((agree + gap < 0.8).double().mean()), abs=0.05)


def test_too_little_to_fit_leaves_the_default() -> None:
    few = torch.rand(10)
    assert Calibration.fit(few, few, few > 0.5) == Calibration()
    many = torch.rand(500)
    assert Calibration.fit(many, many, torch.ones(500, dtype=torch.bool)) == Calibration()


@pytest.mark.parametrize("method", METHODS)
def test_right_boxes_are_trusted_more(tmp_path: Path, method: str) -> None:
    target, shown = planted_target(tmp_path / "s", classes=4, bags=80, noise=0.9)
    labels = torch.full((80, target.transfer.size), -1)
    labels[torch.arange(80), torch.from_numpy(shown)] = torch.arange(80) % 4
    transfer, _ = learn_transfer(target.transfer, Labels.of(labels), TransferSettings(steps=60, pairs=8, lr=0.01))
    state = run_method(method, target, transfer, SETTINGS)
    calibration = calibrate(target.transfer, Labels.of(labels), TransferSettings(steps=20, pairs=8, lr=0.01), SETTINGS)
    sure = confidence(target, transfer, state, settings_of(method, SETTINGS), calibration)
    everything = torch.cat(sure)
    assert ((everything >= 0) & (everything <= 1)).all()
    assert [len(entry) for entry in sure] == [len(bags) for bags in target.positives]
    right = torch.cat([state.selection[c] == torch.from_numpy(shown)[b] for c, b in enumerate(target.positives)])
    if method in ("warm-up", "full") and 3 < int(right.sum()) < 77:
        assert float(everything[right].mean()) > float(everything[~right].mean())
    votes = agreement(target, transfer, state.scores, state.selection, 0, settings_of(method, SETTINGS), state.fold)
    assert np.isin((votes * (2 + bool(state.scores))).round(decimals=6), np.arange(10)).all()
