"""Calibration: source classes play the target, and none of their images is learned from."""

from pathlib import Path

import numpy as np
import pytest

from helpers import plain_settings, plain_transfer, planted_store, planted_truth
from pairloc.datasets.dataset import Dataset, Image
from pairloc.localization import calibration
from pairloc.localization.calibration import _cast, calibrate
from pairloc.localization.confidence import Calibration

SETTINGS = plain_settings(rounds=1, folds=2)


def tagged(*tags: tuple[int, ...], classes: int = 6) -> Dataset:
    images = tuple(Image(i + 1, f"{i}.jpg", None) for i in range(len(tags)))
    return Dataset(images, tuple(f"class {c}" for c in range(classes)), tags)


@pytest.mark.parametrize("seed", range(8))
def test_those_who_play_are_never_learned_from(seed: int) -> None:
    random = np.random.default_rng(seed)
    tags = [tuple(sorted(random.choice(6, random.integers(1, 3), replace=False).tolist())) for _ in range(60)]
    cast = _cast(tagged(*tags), seed)
    assert cast is not None
    assert len(cast.classes) == 2  # a third
    assert not set(cast.source) & set(cast.target)
    for image in cast.source:
        assert not set(tags[image]) & set(cast.classes)
    for image in cast.target:
        assert set(tags[image]) & set(cast.classes)


def test_the_one_in_six_classes_that_plays_brings_no_more_images_than_are_needed() -> None:
    cast = _cast(tagged(*(((0,), (1,), (2,)) * 100), classes=3), 0)
    assert cast is not None
    assert len(cast.classes) == 1
    assert len(cast.target) == calibration._IMAGES
    assert len(cast.source) == 200


def test_too_few_classes_or_images_leave_the_default() -> None:
    assert _cast(tagged((0,), (0,), (0,)), 0) is None
    assert _cast(tagged((0, 1), (0, 1), (0, 1)), 0) is None  # nothing is left to learn from
    assert _cast(tagged(), 0) is None


def test_a_curve_is_fitted_to_what_was_right(tmp_path: Path) -> None:
    """A noisy source: some boxes are wrong, and the curve says how many are right."""
    store, shown = planted_store(tmp_path / "s", classes=6, bags=360, d=24, noise=1.6)
    truth = planted_truth(store, shown)
    fitted = calibrate(store, truth, plain_transfer(steps=40), SETTINGS)
    assert fitted != Calibration()
    assert fitted.scale > 0
    assert fitted == calibrate(store, truth, plain_transfer(steps=40), SETTINGS)


def test_a_source_of_one_class_is_not_calibrated(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", classes=1, bags=12)
    assert calibrate(store, planted_truth(store, shown), plain_transfer(steps=2), SETTINGS) == Calibration()


def test_too_few_objects_without_the_playing_classes_give_the_default_curve(tmp_path: Path) -> None:
    """A run must not end after its proposer was trained because its source is small."""
    store, shown = planted_store(tmp_path / "s", classes=4, bags=40)
    dataset, truth = planted_truth(store, shown)
    none = truth.where(np.zeros(len(truth), dtype=np.bool_))
    assert calibrate(store, (dataset, none), plain_transfer(), plain_settings()) == Calibration()
