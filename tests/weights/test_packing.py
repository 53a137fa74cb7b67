"""Small weights made from those of a run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from pairloc.detector.model import Proposer
from pairloc.errors import InputError
from pairloc.weights import PACKAGED, extract_of, localization_of, weights_folder
from pairloc.weights.catalogue import changed, describe
from pairloc.weights.packing import make
from runs.calling import call, refused


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("small") / "weights"
    make(PACKAGED, out)
    return out


def test_small_weights_say_the_same_of_themselves(small: Path) -> None:
    before, after = describe(PACKAGED), describe(str(small))
    assert (after.classes, after.backbone, after.evidence) == (before.classes, before.backbone, before.evidence)
    assert after.bytes < 0.7 * before.bytes  # those are in half precision already
    assert localization_of(str(small)) == localization_of(PACKAGED)
    assert extract_of(str(small)) == extract_of(PACKAGED)
    assert changed(str(small)) == []
    for name in ("evidence/combination.json", "calibration/calibration.json"):
        assert json.loads((small / name).read_text()) == json.loads((weights_folder(PACKAGED) / name).read_text())


def test_every_weight_of_the_network_is_as_near_as_a_byte_allows(small: Path) -> None:
    before, after = (
        Proposer.load(folder / "proposer").model.state_dict() for folder in (weights_folder(PACKAGED), small)
    )
    for name, tensor in before.items():
        if tensor.ndim > 1:
            level = tensor.flatten(1).abs().amax(dim=1) / 127
            assert bool(((after[name] - tensor).flatten(1).abs() <= 0.51 * level[:, None] + 1e-4).all()), name


def test_weights_made_of_small_weights_stay_as_they_are(small: Path, tmp_path: Path) -> None:
    make(str(small), tmp_path / "again")
    before, after = (Proposer.load(folder / "proposer").model.state_dict() for folder in (small, tmp_path / "again"))
    for name, tensor in before.items():
        assert torch.allclose(tensor, after[name], rtol=1e-6, atol=0), name


def test_small_weights_find_the_boxes_of_the_large_ones(small: Path, tmp_path: Path) -> None:
    call("scenes", "--out", tmp_path / "scenes", "--source-images", 1, "--target-images", 6)
    images, tags = tmp_path / "scenes" / "images", tmp_path / "scenes" / "target_tags.csv"
    found = []
    for name in (PACKAGED, small):
        out = tmp_path / f"out-{Path(name).name}"
        assert call("localize", images, "--tags", tags, "--out", out, "--weights", name).status == 0
        found.append(json.loads((out / "boxes.json").read_text())["annotations"])
    boxes = [np.array([entry["bbox"] for entry in part]) for part in found]
    assert boxes[0].shape == boxes[1].shape
    near = np.abs(boxes[0] - boxes[1]).max(axis=1) < 6  # pixels of 128
    assert near.mean() > 0.5


def test_the_command_says_what_it_made_and_takes_evidence_from_elsewhere(tmp_path: Path) -> None:
    bare = Path(shutil.copytree(weights_folder(PACKAGED), tmp_path / "bare"))
    shutil.rmtree(bare / "evidence")
    text = call("weights", "make", bare, "--out", tmp_path / "made", "--evidence", weights_folder(PACKAGED)).text
    assert "efficientnet-lite0, knows 63 classes by name" in text
    assert describe(str(tmp_path / "made")).evidence
    call("weights", "make", bare, "--out", tmp_path / "made")  # may be repeated
    assert "has no learned evidence" in refused(
        "weights", "make", PACKAGED, "--out", tmp_path / "x", "--evidence", bare
    )
    assert not (tmp_path / "x").exists()


def test_nothing_else_is_overwritten_and_damage_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="already contains other files"):
        make(PACKAGED, tmp_path / "mine")
    broken = Path(shutil.copytree(weights_folder(PACKAGED), tmp_path / "broken"))
    (broken / "proposer" / "proposer.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="does not hold a proposer"):
        make(str(broken), tmp_path / "out")
    assert not (tmp_path / "out").exists()
