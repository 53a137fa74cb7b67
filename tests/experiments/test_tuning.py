"""Tuning on playing classes: disjoint images, the best value of a key is kept, all trials are logged."""

import json
from argparse import Namespace
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import plain_settings, plain_transfer, planted_store, planted_truth
from pairloc.errors import InputError
from pairloc.evaluation.corloc import Localized
from pairloc.experiments import tuning
from pairloc.experiments.tuning import SEARCH, PlayingTarget, draw_classes, tune, with_value
from pairloc.localization.combination import Combination, Weighing
from pairloc.localization.engine import localize_target
from pairloc.localization.methods import METHODS
from pairloc.settings import LocalizationSettings, TransferSettings
from runs.calling import call, refused

TRANSFER = plain_transfer(steps=20)
LOCALIZATION = plain_settings(
    rounds=1, folds=2, solver={"k": 2, "iterations": 10}, features={"kind": "transfer"},
    training={"steps": 5, "pairs": 4},
)  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> PlayingTarget:
    store, shown = planted_store(tmp_path_factory.mktemp("t") / "s", classes=8, bags=64, d=16)
    return PlayingTarget(store, planted_truth(store, shown), draw_classes(store.dataset, 3, 0), "cpu")


def test_source_and_target_are_disjoint_and_playing_classes_have_no_boxes(target: PlayingTarget) -> None:
    draw = target.draw
    assert not set(draw.source) & set(draw.target)
    assert not np.isin(target.source[1].label, draw.classes).any()
    assert len(target.dataset.classes) == 3
    assert len(target.truth) == len(draw.target)
    assert all(tags for tags in target.dataset.tags)
    assert len(draw.cluttered) == len(draw.target)


@pytest.fixture(scope="module")
def cluttered(tmp_path_factory: pytest.TempPathFactory) -> PlayingTarget:
    """Every third image is tagged with a second class, whose box is that of the first."""
    store, shown = planted_store(tmp_path_factory.mktemp("c") / "s", classes=8, bags=120, d=16)
    dataset, truth = planted_truth(store, shown)
    second = np.arange(120) % 3 == 0
    tags = tuple(
        tuple(sorted({*labels, (labels[0] + 1 + index) % 8})) if second[index] else labels
        for index, labels in enumerate(dataset.tags)
    )
    store.__dict__["dataset"] = replace(dataset, tags=tags)
    draw = draw_classes(store.dataset, 3, 0)
    return PlayingTarget(store, (store.dataset, truth), draw, "cpu")


def test_clean_and_cluttered_images_play_and_cluttered_ones_are_held_apart(cluttered: PlayingTarget) -> None:
    draw, tags = cluttered.draw, cluttered.store.dataset.tags
    playing = set(draw.classes.tolist())
    for image, is_cluttered in zip(draw.target, draw.cluttered.tolist(), strict=True):
        assert set(tags[image]) & playing
        assert is_cluttered == bool(set(tags[image]) - playing)
    assert draw.cluttered.any()
    assert not draw.cluttered.all()
    assert draw.cluttered.sum() <= len(tags) // 5
    assert all(set(tags[image]) - playing for image in draw.source)
    assert not set(draw.source) & set(draw.target)


def test_values_are_compared_by_the_mean_of_clean_and_cluttered_images(
    cluttered: PlayingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right on clean images alone gives one half, however many there are of each kind."""
    images = np.arange(len(cluttered.draw.target))
    rows = np.repeat(images, 2)
    overlap = np.where(cluttered.draw.cluttered[rows], 0.0, 0.6)
    found = Localized(rows, rows % 3, overlap, np.ones(len(rows)), cluttered.dataset.classes)
    monkeypatch.setattr(tuning, "localize_target", lambda *arguments, **options: Namespace(boxes=None))
    monkeypatch.setattr(tuning, "localized", lambda *arguments: found)
    assert cluttered.measure("warm-up", TRANSFER, LOCALIZATION) == (0.5, 0.0)
    none = replace(cluttered.draw, cluttered=np.zeros(len(images), dtype=np.bool_))
    alone = PlayingTarget(cluttered.store, cluttered.source, none, "cpu")
    assert 0 < alone.measure("warm-up", TRANSFER, LOCALIZATION)[0] < 1


def test_localization_is_tuned_with_the_evidence_of_the_run_and_transfer_with_mixed_scores(
    target: PlayingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    combination = Combination(learned_on="", alpha=0.3, weighings=(Weighing(terms={"objectness": (0.0, 1.0, 1.0)}),))
    evident = copy(target)
    evident.combination, evident._learned = combination, {}
    used = []

    def recorded(*arguments: Any, **options: Any) -> Any:
        used.append((arguments[2].known, arguments[2].combination, arguments[3].unary.combination))
        return localize_target(*arguments, **options)

    monkeypatch.setattr(tuning, "localize_target", recorded)
    learned = with_value(LOCALIZATION, "unary.combination", "learned")
    alpha = ("localization.energy.alpha", (2.0, LOCALIZATION.energy.alpha), "warm-up-unary")
    present = ("transfer.foreground_iou", (TRANSFER.foreground_iou,), "warm-up-unary")
    other = ("transfer.foreground_iou", (0.7,), "warm-up-unary")
    transfer, localization, _ = tune([evident], TRANSFER, learned, (present, alpha, other, alpha))
    assert [kind for *_, kind in used] == ["mixed", "learned", "learned", "mixed", "mixed", "mixed"]
    assert all(entry[:2] == (None, combination) for entry in used)
    assert localization == learned  # alpha has no effect on unary scores, so the present value is kept
    assert transfer.foreground_iou == 0.7


def test_draws_differ_and_the_same_seed_draws_the_same(target: PlayingTarget) -> None:
    dataset = target.store.dataset
    again = draw_classes(dataset, 3, 0)
    assert again.classes.tolist() == target.draw.classes.tolist()
    assert (again.source, again.target) == (target.draw.source, target.draw.target)
    assert len({tuple(draw_classes(dataset, 3, seed).classes.tolist()) for seed in range(6)}) > 1


def test_tuning_keeps_the_best_values_and_logs_all_trials(target: PlayingTarget) -> None:
    lines: list[str] = []
    search = (
        ("localization.energy.alpha", (0.0, 2.0), "warm-up"),
        ("transfer.foreground_iou", (0.4, 0.7), "warm-up"),
        ("localization.rounds", (0, 1), "full"),
    )
    transfer, localization, trials = tune([target], TRANSFER, LOCALIZATION, search, lines.append)
    assert len(lines) == len(trials) == 6
    best = max(trials[:2], key=lambda entry: entry.merit)
    assert localization.energy.alpha == best.value
    assert localization.energy.lambda1 == LOCALIZATION.energy.lambda1  # other keys of the group are unchanged
    assert transfer.background_iou <= transfer.foreground_iou
    assert all(0 <= entry.corloc70 <= entry.corloc50 <= 1 for entry in trials)


def test_a_value_that_conflicts_with_other_settings_is_not_tried(target: PlayingTarget) -> None:
    lines: list[str] = []
    search = (("localization.safeguard", (True,), "full"),)
    _, localization, trials = tune([target], TRANSFER, LOCALIZATION, search, lines.append)
    assert trials == []
    assert localization == LOCALIZATION
    assert "not tried" in lines[0]


def test_every_searched_key_is_a_setting() -> None:
    for key, values, method in SEARCH:
        section, name = key.split(".", 1)
        settings = {"transfer": TransferSettings(), "localization": LocalizationSettings()}[section]
        assert method in METHODS
        for value in values:
            found = with_value(settings, name, value)
            for part in name.split("."):
                found = getattr(found, part)
            assert found == value


def test_too_few_classes_are_an_error(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s", classes=3)
    with pytest.raises(InputError, match="too few to hold 3 out"):
        draw_classes(store.dataset, 3, 0)
    few, _ = planted_store(tmp_path / "few", classes=1, bags=4)
    together = replace(few.dataset, classes=("a", "b"), tags=((0, 1),) * 4, class_ids=(1, 2))
    with pytest.raises(InputError, match="4 images, too few to hold 1 classes out"):
        draw_classes(together, 1, 0)


def test_the_command_line_tunes_a_run_and_overwrites_no_other_file(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning.tune, "__defaults__", ((("localization.rounds", (0,), "warm-up"),), lambda line: None))
    out = tmp_path / "tuned.json"
    for _ in range(2):  # the command may overwrite its own file
        done = call("tune", finished_run, "--out", out, "--classes", 3, "--draws", 1)
        assert done.status == 0, done.text
    found = json.loads(out.read_text())
    assert found["made_by"] == "pairloc tune"
    assert found["localization"]["rounds"] == 0
    assert [entry["key"] for entry in found["tried"]] == ["localization.rounds"]
    LocalizationSettings.model_validate(found["localization"])
    out.write_text("mine")
    assert "is not what this command writes" in refused("tune", finished_run, "--out", out)
    assert out.read_text() == "mine"
