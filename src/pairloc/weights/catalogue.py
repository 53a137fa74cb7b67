"""What weights are: those of the package by name, their card, what they know, how they were made, and their hashes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pairloc.errors import InputError
from pairloc.io import damaged_files, file_hashes, files_in, read_model, read_text, write_json
from pairloc.settings import Settings
from pairloc.weights import extract_of, localization_of, weights_folder

CARD, HASHES = "CARD.md", "hashes.json"


class _Proposer(BaseModel):
    model_config = ConfigDict(frozen=True)
    settings: dict[str, Any]
    classes: tuple[str, ...]


class _Hashes(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    files: dict[str, str]


@dataclass(frozen=True)
class Weights:
    """A folder of weights and what it says about itself."""

    name: str
    folder: Path
    classes: tuple[str, ...]  # known by name
    backbone: str
    bytes: int
    evidence: bool  # whether it was learned how much each piece of evidence counts

    @property
    def card(self) -> str | None:
        """The model card; weights of one's own have none."""
        file = self.folder / CARD
        return read_text(file) if file.is_file() else None


def packaged() -> list[str]:
    """The names of the weights in the package."""
    return sorted(file.parent.name for file in Path(__file__).parent.glob(f"*/{CARD}"))


def describe(name: str) -> Weights:
    """Describe weights of the package, of `Localizer.save` or of a run; raises an InputError if they cannot be read."""
    folder = weights_folder(name)
    proposer = read_model(folder / "proposer" / "proposer.json", _Proposer)
    listed = [folder / file for file in files_of(folder)]
    return Weights(
        name, folder, proposer.classes, str(proposer.settings.get("backbone", "unknown")),
        sum(file.stat().st_size for file in listed), (folder / "evidence" / "combination.json").is_file(),
    )  # fmt: skip


def files_of(folder: Path) -> list[str]:
    """The names of the files that are the weights; a run has many others."""
    parts = ("proposer", "agnostic-proposer", "transfer", "evidence", "calibration", "classifiers")
    kept = [name for name in files_in(folder) if name.split("/")[0] in parts or "/" not in name]
    return [name for name in kept if name.endswith((".json", ".safetensors")) and name != HASHES]


def made_with(name: str) -> str:
    """The settings that weights were made with and are used with, as TOML for `pairloc run`."""
    from pairloc.detector.model import Proposer
    from pairloc.localization.functions import TransferScores

    folder = weights_folder(name)
    groups: dict[str, Settings] = {
        "proposer": Proposer.load(folder / "proposer").settings,
        "extract": extract_of(name),
        "transfer": TransferScores.load(folder / "transfer").settings,
        "localization": localization_of(name),
    }
    lines = [line for group, settings in groups.items() for line in _toml(group, settings.model_dump(mode="json"))]
    return "\n".join(lines[1:]) + "\n"


def _toml(table: str, settings: dict[str, Any]) -> list[str]:
    """A group of settings and the groups inside it; what is None is left out."""
    lines = ["", f"[{table}]"]
    for key, value in settings.items():
        if value is not None and not isinstance(value, dict):
            lines.append(f"{key} = {json.dumps(value)}")
    for key, value in settings.items():
        if isinstance(value, dict):
            lines += _toml(f"{table}.{key}", value)
    return lines


def write_hashes(folder: Path) -> None:
    """Write the hash of every file of some weights beside them."""
    write_json(folder / HASHES, {"files": file_hashes(folder, files_of(folder))}, indent=1)


def changed(name: str) -> list[str]:
    """Return one message per file of some weights that is not as it was written.

    Raises an InputError if the weights have no hashes; those of a run are checked by `pairloc verify`.
    """
    folder = weights_folder(name)
    if not (folder / HASHES).is_file():
        raise InputError(f"{folder}: has no {HASHES} to compare with; check a run with `pairloc verify`")
    known = read_model(folder / HASHES, _Hashes).files
    safe = {file: value for file, value in known.items() if not Path(file).is_absolute() and ".." not in file}
    return damaged_files(folder, safe)
