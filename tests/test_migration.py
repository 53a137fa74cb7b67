"""Migration: settings of old weights and runs are converted, and outdated keys in a TOML file are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from pairloc.detector.model import Proposer
from pairloc.localization.learned import Learned
from pairloc.migration import MOVED, is_old, migrated, migrated_run, moved_key
from pairloc.presets import merged
from pairloc.settings import (
    FineTuneSettings,
    LocalizationSettings,
    ProposerSettings,
    RunSettings,
    Settings,
    TransferSettings,
)

WEIGHTS = Path(__file__).parents[1] / "src" / "pairloc" / "weights" / "coco63"

# Every key of the versions whose settings had no groups.
_DESCENT = """
    steps pairs optimizer lr momentum weight_decay clip foreground background pair_loss relation geometry unary
    unary_decay held_out patience looks
"""
OLD_KEYS: dict[str, tuple[type[Settings], str]] = {
    "localization": (
        LocalizationSettings,
        _DESCENT
        + """rounds folds alpha alpha_scale lambda1 lambda2 k group init solver iterations epochs features dimensions
        foreground_iou negatives rivals largest oversize refine train_unary train_pairs safeguard seed""",
    ),
    "transfer": (
        TransferSettings,
        _DESCENT + "foreground_iou background_iou tight_iou same_class features dimensions seed",
    ),
    "proposer": (
        ProposerSettings,
        """backbone pretrained class_agnostic image_size pyramid levels anchor roi head sampled_rois nearby frozen crop
        epochs batch optimizer lr backbone_lr schedule warm_up weight_decay clip held_out held_classes shared workers
        seed""",
    ),
    "fine_tune": (FineTuneSettings, "epochs steps batch lr warm_up crop weight sure workers seed"),
}

# The settings of a run as an earlier version of `pairloc run` wrote them.
OLD_TRANSFER: dict[str, Any] = {
    "steps": 1500, "pairs": 32, "optimizer": "adamw", "lr": 0.002, "momentum": 0.9, "weight_decay": 0.0005,
    "clip": 10.0, "foreground": 3, "background": 7, "pair_loss": "cross-entropy", "relation": "paper",
    "geometry": False, "unary": "sampled", "unary_decay": 0.001, "held_out": 0.1, "patience": 5, "looks": 20,
    "foreground_iou": 0.5, "background_iou": 0.5, "tight_iou": 0.9, "same_class": 0.5, "features": "transfer",
    "dimensions": 0, "seed": 3,
}  # fmt: skip
OLD_LEARNING: dict[str, Any] = {
    "steps": 300, "pairs": 16, "optimizer": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.0005, "clip": 10.0,
    "foreground": 2, "background": 8, "pair_loss": "cross-entropy", "relation": "cosine", "geometry": True,
    "unary": "exact", "unary_decay": 0.02, "held_out": 0.2, "patience": 5, "looks": 20, "rounds": 5, "folds": 3,
    "alpha": 2.0, "alpha_scale": "none", "lambda1": 0.25, "lambda2": 0.75, "k": 8, "group": 500,
    "init": "mini-problems", "solver": "bp", "iterations": 50, "epochs": 4, "features": "both", "dimensions": 128,
    "foreground_iou": 0.7, "negatives": 0.4, "rivals": 1.5, "largest": 0.8, "oversize": 2.0, "refine": 0.3,
    "train_unary": True, "train_pairs": True, "safeguard": False, "seed": 4,
}  # fmt: skip
OLD_RUN: dict[str, Any] = {
    "data": {
        "scenes": {"seed": 0, "size": 64, "source_images": 40, "target_images": 12}, "source": None,
        "source_images": None, "target": None, "target_images": None, "truth": None, "allow_overlap": False,
    },
    "weights": None,
    "proposer": {
        "backbone": "efficientnet-lite0", "pretrained": True, "class_agnostic": False, "image_size": 64, "pyramid": 16,
        "levels": 2, "anchor": 16, "roi": 3, "head": 32, "sampled_rois": 16, "nearby": 0.1, "frozen": False,
        "crop": 1.0, "epochs": 2, "batch": 8, "optimizer": "adamw", "lr": 0.0005, "backbone_lr": 1.0,
        "schedule": "cosine", "warm_up": 2, "weight_decay": 0.0001, "clip": 10.0, "held_out": 0.05, "held_classes": 0,
        "shared": False, "workers": 0, "seed": 0,
    },
    "extract": {
        "proposals": 10, "nms": 0.7, "whole_image": True, "class_features": "none", "batch": 8, "shard": 16,
        "unreadable": "fail", "workers": 0,
    },
    "transfer": OLD_TRANSFER,
    "learning": OLD_LEARNING,
    "fine_tune": {
        "epochs": 12, "steps": 2, "batch": 8, "lr": 0.0003, "warm_up": 1, "crop": 0.6, "weight": 2.0, "sure": 0.6,
        "workers": 0, "seed": 0,
    },
    "methods": ["warm-up-unary", "full", "fine-tuned"],
    "transfer_images": 30, "seed": 0, "device": "auto", "memory": 8.0,
}  # fmt: skip


@pytest.mark.parametrize("section", OLD_KEYS)
def test_every_old_key_has_a_migration(section: str) -> None:
    """Each old key still exists, has a new name, or is listed as removed."""
    model, keys = OLD_KEYS[section]
    for key in keys.split():
        new_key = MOVED[section].get(key, key)
        group: Any = model
        for name in new_key.split(".") if new_key is not None else ():
            assert name in group.model_fields, f"{section}.{key} -> {new_key}"
            group = group.model_fields[name].annotation


@pytest.mark.parametrize("section", OLD_KEYS)
def test_no_current_key_is_mistaken_for_an_old_one(section: str) -> None:
    """An old key may be the name of a current group, but never of a current value."""
    model, _ = OLD_KEYS[section]
    for name in set(model.model_fields) & set(MOVED[section]):
        annotation = model.model_fields[name].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, Settings)


@pytest.mark.parametrize("section", OLD_KEYS)
def test_current_settings_are_unchanged(section: str) -> None:
    model, _ = OLD_KEYS[section]
    content = model().model_dump(mode="json")
    assert not is_old(section, content)
    assert migrated(section, content) == content
    assert migrated(section, {}) == {}


def test_current_settings_of_a_run_are_unchanged() -> None:
    run = RunSettings.model_validate({"data": {"scenes": {}}, "methods": ["full", "mi-svm"]})
    content = run.model_dump(mode="json")
    assert migrated_run(content) == content
    assert moved_key(content) is None


def test_settings_of_an_old_run_keep_their_meaning() -> None:
    before = json.dumps(OLD_RUN)
    run = RunSettings.model_validate(migrated_run(OLD_RUN))
    assert json.dumps(OLD_RUN) == before  # the argument is not changed
    assert run.transfer.images == 30
    assert run.proposer.min_background_iou == 0.1
    assert run.fine_tune.instance_threshold == 0.6
    transfer, localization = run.transfer, run.localization
    assert transfer.features.model_dump() == {"kind": "transfer", "dimensions": 0, "geometry": False}
    assert transfer.unary.model_dump() == {"fit": "sampled", "decay": 0.001, "tight_iou": 0.9}
    assert transfer.pairs.kind == "relation"
    assert (transfer.training.steps, transfer.training.pairs, transfer.foreground_iou) == (1500, 32, 0.5)
    assert transfer.seed == 3
    assert localization.energy.model_dump() == {
        "alpha": 2.0, "alpha_scale": "none", "lambda1": 0.25, "lambda2": 0.75, "max_compared_bags": 500,
    }  # fmt: skip
    assert localization.solver.model_dump() == {"name": "bp", "k": 8, "iterations": 50, "epochs": 4}
    assert localization.features.model_dump() == {"kind": "both", "dimensions": 128, "geometry": True}
    assert localization.unary.model_dump() == {
        "combination": "mixed", "fit": "exact", "decay": 0.02, "trust": 0.0, "other_tag_weight": 1.5,
        "area_penalty": 2.0, "max_area": 0.8, "tags_as_new": False,
    }  # fmt: skip
    assert localization.exclusion_iou == 1.0
    assert localization.pairs.kind == "cosine"
    assert localization.training.model_dump() == {
        "steps": 300, "pairs": 16, "optimizer": "sgd", "lr": 0.01, "foreground": 2, "background": 8, "held_out": 0.2,
        "foreground_iou": 0.7, "negatives": 0.4, "warm_start": False,
    }  # fmt: skip
    assert localization.boxes.voting_iou == 0.3
    assert (localization.rounds, localization.folds, localization.safeguard, localization.seed) == (5, 3, False, 4)


@pytest.mark.parametrize(("section", "old"), [("transfer", OLD_TRANSFER), ("localization", OLD_LEARNING)])
def test_keys_that_an_old_file_omits_have_their_old_defaults(section: str, old: dict[str, Any]) -> None:
    """If a file has one old key, omitted keys have their old defaults, not the current ones."""
    model = OLD_KEYS[section][0]
    plain = {
        "transfer": OLD_TRANSFER | {"seed": 0},
        "localization": {
            "steps": 1500, "pairs": 32, "optimizer": "adamw", "lr": 2e-3, "foreground": 3, "background": 7,
            "relation": "paper", "geometry": False, "unary": "sampled", "unary_decay": 1e-2, "held_out": 0.1,
            "rounds": 3, "folds": 4, "alpha": 1.0, "alpha_scale": "per_bag", "lambda1": 0.5, "lambda2": 0.5, "k": 4,
            "group": 0, "solver": "trws", "iterations": 100, "epochs": 10, "features": "class", "dimensions": 0,
            "foreground_iou": 0.6, "negatives": 0.5, "rivals": 0.0, "largest": 1.0, "oversize": 0.0, "refine": 0.0,
            "safeguard": False, "seed": 0,
        },
    }[section]  # fmt: skip
    assert model.model_validate(migrated(section, {"clip": 10.0})) == model.model_validate(migrated(section, plain))
    assert is_old(section, old)


def test_the_settings_of_the_first_weights_convert() -> None:
    """Those of weights before evidence was learned: they still select as they did."""
    learning = {
        "features": "both", "dimensions": 256, "geometry": True, "unary": "exact", "relation": "cosine",
        "train_pairs": False, "rounds": 1, "folds": 4, "k": 4, "alpha": 1.0, "lambda1": 1.0, "lambda2": 0.5,
        "rivals": 1.0, "refine": 0.4, "largest": 0.9, "oversize": 3.0, "group": 1024,
    }  # fmt: skip
    settings = LocalizationSettings.model_validate(migrated("localization", learning))
    before = {"exclusion_iou": 1.0, "unary": {"combination": "mixed", "decay": 0.01, "trust": 0.0}}
    assert settings == LocalizationSettings.model_validate(merged(LocalizationSettings().model_dump(), before))
    proposer = json.loads((WEIGHTS / "proposer" / "proposer.json").read_text())["settings"]
    assert ProposerSettings.model_validate(migrated("proposer", proposer)).crop == 0.6
    transfer = json.loads((WEIGHTS / "transfer" / "transfer.json").read_text())
    assert TransferSettings.model_validate(migrated("transfer", transfer)) == TransferSettings()


def test_the_packaged_weights_load() -> None:
    learned = Learned.load(WEIGHTS)
    assert learned.scores.settings == TransferSettings()
    assert learned.scores.relation.d == learned.scores.unary.linear.in_features
    assert learned.calibration.scale > 0
    assert len(Proposer.load(WEIGHTS / "proposer").classes) == 63


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"transfer_images": 5}, ("transfer_images", "transfer.images")),
        ({"learning": {"alpha": 1.0}}, ("learning.alpha", "localization.energy.alpha")),
        ({"learning": {"rounds": 1}}, ("learning.rounds", "localization.rounds")),
        ({"learning": {"momentum": 1}}, ("learning.momentum", None)),
        ({"learning": {}}, ("learning", "localization")),
        ({"transfer": {"steps": 5}}, ("transfer.steps", "transfer.training.steps")),
        ({"transfer": {"pairs": 5}}, ("transfer.pairs", "transfer.training.pairs")),
        ({"transfer": {"features": "both"}}, ("transfer.features", "transfer.features.kind")),
        ({"localization": {"refine": 0.4}}, ("localization.refine", "localization.boxes.voting_iou")),
        ({"localization": {"train_pairs": False}}, ("localization.train_pairs", None)),
        ({"proposer": {"nearby": 0.1}}, ("proposer.nearby", "proposer.min_background_iou")),
        ({"proposer": {"clip": 1.0}}, ("proposer.clip", None)),
        ({"fine_tune": {"sure": 0.1}}, ("fine_tune.sure", "fine_tune.instance_threshold")),
        ({"transfer": {"pairs": {"kind": "cosine"}, "training": {"steps": 5}}}, None),
        ({"localization": {"rounds": 1, "unary": {"fit": "exact"}}}, None),
        ({"localization": 5, "proposer": []}, None),
        ({}, None),
    ],
)
def test_the_first_outdated_key_is_returned_with_its_new_name(
    content: dict[str, Any], expected: tuple[str, str | None] | None
) -> None:
    assert moved_key(content) == expected
