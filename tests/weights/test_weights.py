"""Weights are stored with the settings to use them with."""

import json
from pathlib import Path

import pytest

from pairloc.errors import InputError
from pairloc.settings import ExtractSettings, LocalizationSettings
from pairloc.weights import PACKAGED, extract_of, localization_of, weights_folder


def folder_of_weights(path: Path, **files: object) -> Path:
    for name in ("proposer", "transfer"):
        (path / name).mkdir(parents=True)
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_the_packaged_weights_use_the_recommended_settings() -> None:
    assert localization_of(PACKAGED) == LocalizationSettings()
    assert extract_of(PACKAGED) == ExtractSettings(unreadable="skip")


def test_settings_are_read_from_runs_and_saved_weights(tmp_path: Path) -> None:
    settings = {"localization": {"rounds": 7}, "extract": {"class_features": "none", "proposals": 30}}
    new = folder_of_weights(tmp_path / "new", config={"made_by": "pairloc run", "settings": settings})
    learning = {"rounds": 7, "lambda2": 0.5}
    old = folder_of_weights(tmp_path / "old", config={"learning": learning, "extract": settings["extract"]})
    for folder in (new, old):
        assert localization_of(str(folder)).rounds == 7
        assert extract_of(str(folder)).class_features == "none"
    assert localization_of(str(old)).energy.lambda1 == 0.5  # the old default
    saved = folder_of_weights(
        tmp_path / "saved", localization={"rounds": 2}, extract={"class_features": "backbone-crops"}
    )
    assert localization_of(str(saved)).rounds == 2
    assert extract_of(str(saved)).class_features == "backbone-crops"


@pytest.mark.parametrize("content", [[], 3, {"settings": 3}, {"settings": {"localization": {"rounds": "many"}}}])
def test_invalid_settings_are_reported_with_their_file(tmp_path: Path, content: object) -> None:
    folder = folder_of_weights(tmp_path / "w", config=content)
    with pytest.raises(InputError, match=r"config\.json"):
        localization_of(str(folder))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder of weights"):
        weights_folder(str(tmp_path))
