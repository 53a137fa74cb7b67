import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import pairloc
from helpers import TINY
from pairloc.detector.model import SETTINGS, WEIGHTS, Proposer
from pairloc.errors import InputError
from pairloc.settings import ProposerSettings


@pytest.fixture
def copy(proposer: Path, tmp_path: Path) -> Path:
    shutil.copytree(proposer, tmp_path / "p")
    return tmp_path / "p"


def test_saving_and_loading_keeps_settings_and_weights(proposer: Path, tmp_path: Path) -> None:
    loaded = Proposer.load(proposer)
    assert loaded.settings == TINY
    assert len(loaded.classes) == 18
    loaded.save(tmp_path / "again")
    for name in (SETTINGS, WEIGHTS):
        assert (tmp_path / "again" / name).read_bytes() == (proposer / name).read_bytes()


def test_the_packaged_proposer_of_an_earlier_version_is_loaded() -> None:
    """Its settings contain removed keys and lack new ones."""
    folder = Path(pairloc.__file__).parent / "weights" / "coco63" / "proposer"
    loaded = Proposer.load(folder)
    assert "schedule" in json.loads((folder / SETTINGS).read_text())["settings"]
    assert loaded.settings == ProposerSettings(anchor=24, crop=0.6, batch=64, held_out=0.25, workers=12)
    assert len(loaded.classes) == 63
    assert all(tensor.isfinite().all() for tensor in loaded.model.state_dict().values())


def test_renamed_settings_are_converted(copy: Path) -> None:
    content = json.loads((copy / SETTINGS).read_text())
    del content["settings"]["min_background_iou"]
    content["settings"] |= {"nearby": 0.25, "shared": True, "backbone_lr": 0.1}
    (copy / SETTINGS).write_text(json.dumps(content))
    assert Proposer.load(copy).settings == TINY.model_copy(update={"min_background_iou": 0.25})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: [], "valid dictionary"),
        (lambda content: content | {"settings": 3}, "settings: .*valid dictionary, not 3"),
        (lambda content: content | {"classes": []}, "classes: .*at least 1 item"),
        (lambda content: content | {"classes": "cat"}, "classes: .*valid tuple"),
        (lambda content: content | {"classes": [1]}, "classes.0: .*valid string, not 1"),
        (lambda content: content | {"settings": {"head": -1}}, "settings.head: .*greater than or equal to 8, not -1"),
        (lambda content: content | {"settings": {"magic": 1}}, "settings.magic: "),
        (lambda content: content | {"settings": content["settings"] | {"head": 64}}, "does not hold a proposer"),
        (lambda content: content | {"classes": ["cat"]}, "does not hold a proposer"),
        (lambda content: content | {"settings": content["settings"] | {"backbone": "no"}}, "there is no backbone"),
    ],
)
def test_invalid_settings_are_reported_in_one_sentence(copy: Path, change: Callable[[Any], Any], message: str) -> None:
    (copy / SETTINGS).write_text(json.dumps(change(json.loads((copy / SETTINGS).read_text()))))
    with pytest.raises(InputError, match=message) as caught:
        Proposer.load(copy)
    assert "\n" not in str(caught.value)


def test_damaged_or_missing_files_are_reported(copy: Path, tmp_path: Path) -> None:
    (copy / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(InputError, match="p: does not hold a proposer"):
        Proposer.load(copy)
    (copy / WEIGHTS).unlink()
    with pytest.raises(InputError, match="p: does not hold a proposer"):
        Proposer.load(copy)
    with pytest.raises(InputError, match=r"none/proposer.json: cannot be read"):
        Proposer.load(tmp_path / "none")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), None])
def test_weights_that_are_not_finite_are_refused(copy: Path, value: float | None) -> None:
    weights = load_file(copy / WEIGHTS)
    name = "roi_heads.box_predictor.cls_score.bias"
    weights[name] = (
        torch.zeros(19, dtype=torch.int64) if value is None else weights[name].index_fill(0, torch.tensor([3]), value)
    )
    save_file(weights, copy / WEIGHTS)
    with pytest.raises(
        InputError, match=r"p/proposer.safetensors: weights are not finite numbers \(roi_heads.*\); train again$"
    ):
        Proposer.load(copy)


def test_a_symbolic_link_is_replaced_and_not_followed(proposer: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "p").mkdir()
    for name in (SETTINGS, WEIGHTS):
        (tmp_path / "p" / name).symlink_to(outside)
    Proposer.load(proposer).save(tmp_path / "p")
    assert outside.read_text() == "mine"
    assert Proposer.load(tmp_path / "p").settings == TINY
