"""Runs and weights of earlier versions, whose settings had no groups, keep working."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pairloc.errors import InputError
from pairloc.presets import read_config
from pairloc.runs.localize import localize_settings
from pairloc.runs.run import Run, open_run
from pairloc.runs.sealing import broken
from pairloc.settings import LocalizationSettings, RunSettings
from pairloc.weights import PACKAGED, localization_of
from runs.calling import call, copied

# The settings that an earlier version wrote for the tiny run.
_TRAINED: dict[str, Any] = {
    "optimizer": "adamw", "lr": 0.002, "momentum": 0.9, "weight_decay": 0.0005, "clip": 10.0, "foreground": 3,
    "background": 7, "pair_loss": "cross-entropy", "relation": "paper", "geometry": False, "unary": "sampled",
    "held_out": 0.1, "patience": 5, "looks": 20, "features": "transfer", "dimensions": 0, "seed": 0,
}  # fmt: skip
OLD: dict[str, Any] = {
    "data": {
        "scenes": {"seed": 0, "size": 64, "source_images": 40, "target_images": 12}, "source": None,
        "source_images": None, "target": None, "target_images": None, "truth": None, "allow_overlap": False,
    },
    "weights": None,
    "proposer": {
        "backbone": "efficientnet-lite0", "pretrained": True, "class_agnostic": False, "image_size": 64, "pyramid": 16,
        "levels": 2, "anchor": 16, "roi": 3, "head": 32, "sampled_rois": 16, "nearby": 0.0, "frozen": False,
        "crop": 1.0, "epochs": 2, "batch": 8, "optimizer": "adamw", "lr": 0.0005, "backbone_lr": 1.0,
        "schedule": "cosine", "warm_up": 2, "weight_decay": 0.0001, "clip": 10.0, "held_out": 0.05, "held_classes": 0,
        "shared": False, "workers": 0, "seed": 0,
    },
    "extract": {
        "proposals": 10, "nms": 0.7, "whole_image": True, "class_features": "none", "batch": 8, "shard": 16,
        "unreadable": "fail", "workers": 0,
    },
    "transfer": _TRAINED | {
        "steps": 10, "pairs": 4, "unary_decay": 0.001, "foreground_iou": 0.5, "background_iou": 0.5, "tight_iou": 0.9,
        "same_class": 0.5,
    },
    "learning": _TRAINED | {
        "steps": 5, "pairs": 4, "unary_decay": 0.01, "rounds": 2, "folds": 2, "alpha": 1.0, "alpha_scale": "per_bag",
        "lambda1": 0.5, "lambda2": 0.5, "k": 2, "group": 0, "init": "mini-problems", "solver": "trws",
        "iterations": 10, "epochs": 10, "foreground_iou": 0.6, "negatives": 0.5, "rivals": 0.0, "largest": 1.0,
        "oversize": 0.0, "refine": 0.0, "train_unary": True, "train_pairs": True, "safeguard": False,
    },
    "fine_tune": {
        "epochs": 12, "steps": 2, "batch": 8, "lr": 0.0003, "warm_up": 1, "crop": 0.6, "weight": 2.0, "sure": 0.5,
        "workers": 0, "seed": 0,
    },
    "methods": ["warm-up-unary", "full", "fine-tuned"],
    "transfer_images": 30, "seed": 0, "device": "auto", "memory": 8.0,
}  # fmt: skip


@pytest.fixture
def old(finished_run: Path, tmp_path: Path) -> Path:
    """The tiny run as an earlier version left it: settings, proposer, transfer scores and one method."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(OLD))
    for name in ("data", "proposer", "transfer", "calibration"):
        copied(finished_run / name, folder / name)
        for file in ("begun.json", "done.json"):
            (folder / name / file).write_text(json.dumps({"key": "0" * 64}))
    method = folder / "full"
    method.mkdir()
    (method / "boxes.json").write_text("found before")
    files = {"boxes.json": hashlib.sha256(b"found before").hexdigest()}
    key = {"key": "d8acd0ac" * 8}
    (method / "begun.json").write_text(json.dumps(key))
    (method / "done.json").write_text(json.dumps(key | {"seconds": 0.4, "peak_bytes": 929280000, "files": files}))
    return folder


def test_settings_of_an_old_run_are_converted(old: Path, config: Path) -> None:
    settings, now = open_run(old).settings, read_config(config)
    assert settings.localization == now.localization
    assert settings.transfer == now.transfer
    assert settings.proposer == now.proposer
    assert settings.fine_tune == now.fine_tune
    assert settings.methods == now.methods
    assert settings.data == now.data


def test_opening_a_current_run_keeps_its_settings(config: Path, finished_run: Path) -> None:
    assert open_run(finished_run).settings == read_config(config)
    for settings in (RunSettings.model_validate({"weights": "coco63", "data": {"target": "x"}}), read_config(config)):
        assert RunSettings.model_validate(settings.model_dump(mode="json")) == settings


def test_a_run_from_before_min_confidence_and_explanations_is_done(localized: Path, tmp_path: Path) -> None:
    folder = copied(localized, tmp_path / "run")
    assert not (folder / "full" / "explanations.json").exists()  # its weights have no learned evidence
    content = json.loads((folder / "config.json").read_text())
    del content["settings"]["min_confidence"]
    (folder / "config.json").write_text(json.dumps(content))
    run = open_run(folder)
    assert {state for _, state in run.plan()} == {"done"}
    assert run.stages["report"].settings is None  # as it was, so the key is
    assert call("report", folder, "--out", tmp_path / "report.html").status == 0


def test_repeating_an_old_run_keeps_its_stages_aside(old: Path, finished_run: Path) -> None:
    lines: list[str] = []
    run = open_run(old, log=lines.append)
    assert dict(run.plan())["full"].startswith("settings or inputs changed: ")
    run.run()
    assert any("(full): the earlier result was made with other settings or inputs" in line for line in lines)
    assert (old / "aside" / "full-d8acd0acd8ac" / "boxes.json").read_text() == "found before"
    assert (old / "boxes.json").read_bytes() == (finished_run / "boxes.json").read_bytes()
    assert json.loads((old / "config.json").read_text())["made_by"] == "pairloc run"
    assert broken(old) == []
    assert {state for _, state in open_run(old).plan()} == {"done"}


def test_an_old_run_can_be_used_as_weights(old: Path, finished_run: Path, localized: Path, tmp_path: Path) -> None:
    assert localization_of(str(old)) == localization_of(str(finished_run))
    scenes = finished_run / "data" / "scenes"
    command = ("localize", scenes / "images", "--tags", scenes / "target_tags.csv", "--out", tmp_path / "out")
    assert call(*command, "--weights", old).status == 0
    assert (tmp_path / "out" / "boxes.json").read_bytes() == (localized / "boxes.json").read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "does not contain the settings of a run"),
        ('{"settings": 3}', "does not contain the settings of a run"),
        ('{"learning": 3, "data": {}, "methods": []}', "config.json: "),
        (json.dumps(OLD | {"learning": {"alpha": "much"}}), "localization.energy.alpha"),
        (json.dumps(OLD | {"nonsense": 1}), "nonsense: Extra inputs"),
    ],
)
def test_an_invalid_config_is_reported(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=message):
        open_run(tmp_path)


def test_the_packaged_weights_have_the_default_settings() -> None:
    assert localization_of(PACKAGED) == LocalizationSettings()
    settings = localize_settings(Path("images"), Path("tags.csv"))
    assert settings.localization == LocalizationSettings()
    assert Run(Path("none"), settings).learned.scores.settings.features.dimensions == 512
