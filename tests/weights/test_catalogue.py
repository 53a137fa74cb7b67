"""What weights say about themselves: names, classes, settings, hashes."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from pairloc.detector.model import Proposer
from pairloc.errors import InputError
from pairloc.settings import ExtractSettings, LocalizationSettings, ProposerSettings, TransferSettings
from pairloc.weights import PACKAGED, localization_of, weights_folder
from pairloc.weights.catalogue import changed, describe, made_with, packaged, write_hashes
from runs.calling import call, flip, refused


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(weights_folder(PACKAGED), tmp_path / "weights"))


def test_the_packaged_weights_are_listed_intact_and_have_a_card() -> None:
    assert packaged() == [PACKAGED]
    for name in packaged():
        assert changed(name) == []
        found = describe(name)
        assert found.card is not None
        assert found.card.startswith(f"# {name}")
        assert len(found.classes) == 63
        assert found.evidence
    assert f"{PACKAGED} " in call("weights", "list").text


def test_the_config_is_toml_with_every_setting(copy: Path) -> None:
    for name in (PACKAGED, str(copy)):
        groups = tomllib.loads(made_with(name))
        proposer = Proposer.load(weights_folder(name) / "proposer")
        assert ProposerSettings.model_validate(groups["proposer"]) == proposer.settings
        assert LocalizationSettings.model_validate(groups["localization"]) == localization_of(name)
        TransferSettings.model_validate(groups["transfer"])
        assert ExtractSettings.model_validate(groups["extract"]).unreadable == "skip"
    assert call("weights", "info", copy, "--config").text == made_with(PACKAGED)


def test_weights_of_ones_own_have_no_card(copy: Path) -> None:
    (copy / "CARD.md").unlink()
    text = call("weights", "info", copy).text
    assert text.startswith(f"{copy}: weights without a card")
    assert "classes known by name (63): person, bicycle" in text


@pytest.mark.parametrize(
    "name", ["proposer/proposer.safetensors", "transfer/transfer.json", "evidence/combination.json"]
)
def test_a_flipped_bit_is_found(copy: Path, name: str) -> None:
    flip(copy / name)
    assert changed(str(copy)) == [f"{copy / name}: has changed since it was written"]
    status, text = call("weights", "verify", copy)
    assert status == 1
    assert name in text


def test_a_missing_file_is_found(copy: Path) -> None:
    (copy / "localization.json").unlink()
    assert changed(str(copy)) == [f"{copy / 'localization.json'}: is missing"]


def test_hashes_of_files_outside_the_folder_are_not_followed(copy: Path) -> None:
    (copy.parent / "secret").write_text("x")
    content = {"files": {"../secret": "0" * 64, str(copy.parent / "secret"): "0" * 64}}
    (copy / "hashes.json").write_text(json.dumps(content))
    assert changed(str(copy)) == []


def test_weights_without_hashes_say_how_to_check_a_run(copy: Path) -> None:
    (copy / "hashes.json").unlink()
    assert "check a run with `pairloc verify`" in refused("weights", "verify", copy)


def test_what_is_no_folder_of_weights_is_refused(tmp_path: Path, copy: Path) -> None:
    for verb in ("info", "verify"):
        assert "is not a folder of weights" in refused("weights", verb, tmp_path / "none")
    (copy / "hashes.json").write_text("[]")
    assert "hashes.json" in refused("weights", "verify", copy)
    (copy / "proposer" / "proposer.json").write_text("{")
    assert "proposer.json" in refused("weights", "info", copy)


def test_hashes_are_those_of_the_files_that_are_the_weights(copy: Path) -> None:
    (copy / "boxes.txt").write_text("not weights")
    (copy / "bags").mkdir()
    (copy / "bags" / "plan.json").write_text("{}")
    before = (copy / "hashes.json").read_bytes()
    write_hashes(copy)
    assert (copy / "hashes.json").read_bytes() == before


def test_a_missing_name_is_an_error_of_one_sentence() -> None:
    with pytest.raises(InputError, match="is not a folder of weights"):
        describe("coco64")
