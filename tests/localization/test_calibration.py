"""Calibration: source classes play the target, and no image of them is trained on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import plain_settings, plain_transfer, planted_store, planted_truth
from pairloc.datasets.dataset import Dataset, Image
from pairloc.localization import calibration
from pairloc.localization.calibration import _draw_split, calibrate
from pairloc.localization.combination import Combination, Weighing
from pairloc.localization.confidence import Calibration
from pairloc.localization.engine import localize_target

SETTINGS = plain_settings(rounds=1, folds=2)


def tagged(*tags: tuple[int, ...], classes: int = 6) -> Dataset:
    images = tuple(Image(i + 1, f"{i}.jpg", None) for i in range(len(tags)))
    return Dataset(images, tuple(f"class {c}" for c in range(classes)), tags)


@pytest.mark.parametrize("seed", range(8))
def test_images_of_playing_classes_are_never_trained_on(seed: int) -> None:
    random = np.random.default_rng(seed)
    tags = [tuple(sorted(random.choice(6, random.integers(1, 3), replace=False).tolist())) for _ in range(60)]
    split = _draw_split(tagged(*tags), seed)
    assert split is not None
    assert len(split.classes) == 2  # a third
    assert not set(split.source) & set(split.target)
    for image in split.source:
        assert not set(tags[image]) & set(split.classes)
    for image in split.target:
        assert set(tags[image]) & set(split.classes)


def test_a_playing_class_uses_a_limited_number_of_images() -> None:
    split = _draw_split(tagged(*(((0,), (1,), (2,)) * 100), classes=3), 0)
    assert split is not None
    assert len(split.classes) == 1
    assert len(split.target) == calibration._MAX_IMAGES
    assert len(split.source) == 200


def test_too_few_classes_or_images_give_no_split() -> None:
    assert _draw_split(tagged((0,), (0,), (0,)), 0) is None
    assert _draw_split(tagged((0, 1), (0, 1), (0, 1)), 0) is None  # no image is left to train on
    assert _draw_split(tagged(), 0) is None


def test_a_curve_is_fitted_to_which_boxes_are_correct(tmp_path: Path) -> None:
    """In a noisy source some boxes are wrong, so that there is a curve to fit."""
    store, shown = planted_store(tmp_path / "s", classes=6, bags=360, d=24, noise=1.6)
    truth = planted_truth(store, shown)
    fitted = calibrate(store, truth, plain_transfer(steps=40), SETTINGS)
    assert fitted != Calibration()
    assert fitted.scale > 0
    assert fitted == calibrate(store, truth, plain_transfer(steps=40), SETTINGS)


def test_with_learned_evidence_the_curve_is_fitted_to_scores_as_the_target_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the known classes, since a proposer that was taught the playing ones would recognise them."""
    used = []

    def recorded(*arguments: Any, **options: Any) -> Any:
        used.append(arguments[2])
        return localize_target(*arguments, **options)

    monkeypatch.setattr(calibration, "localize_target", recorded)
    store, shown = planted_store(tmp_path / "s", classes=6, bags=60)
    combination = Combination(learned_on="", weighings=(Weighing(terms={"objectness": (0.0, 1.0, 1.0)}),))
    settings = plain_settings(unary={"combination": "learned"})
    calibrate(store, planted_truth(store, shown), plain_transfer(steps=2), settings, combination=combination)
    assert [(learned.combination, learned.known) for learned in used] == [(combination, None)]


def test_a_source_of_one_class_is_not_calibrated(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", classes=1, bags=12)
    assert calibrate(store, planted_truth(store, shown), plain_transfer(steps=2), SETTINGS) == Calibration()


def test_too_few_objects_without_the_playing_classes_give_the_default_curve(tmp_path: Path) -> None:
    """A small source must not stop a run after its proposer was trained."""
    store, shown = planted_store(tmp_path / "s", classes=4, bags=40)
    dataset, truth = planted_truth(store, shown)
    none = truth.where(np.zeros(len(truth), dtype=np.bool_))
    assert calibrate(store, (dataset, none), plain_transfer(), plain_settings()) == Calibration()
