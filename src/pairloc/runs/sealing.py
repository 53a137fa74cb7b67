"""The seal of a run: the hash of every file, so that any later change is detected.

The hashes of a stage's files come from its record, written when the stage finished: sealing again cannot hide damage.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pairloc.errors import InputError
from pairloc.io import damaged_files, file_hashes, read_model, write_json
from pairloc.runs.stage import BEGUN, DONE, record_of

SEAL = "seal.json"


class Seal(BaseModel):
    """The hash of every file by its name, and the hash of those hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    files: dict[str, str]
    seal: str


def seal(folder: Path, stages: Iterable[str], published: Mapping[str, str], others: Iterable[str]) -> None:
    """Write the seal of a run: the hashes of its stages, its published files and `others`."""
    files = dict(published) | file_hashes(folder, others)
    for name in stages:
        record = record_of(folder / name)
        if record is not None:
            files |= {f"{name}/{file}": hash for file, hash in record.files.items()}
            files |= file_hashes(folder, [f"{name}/{BEGUN}", f"{name}/{DONE}"])
    files = dict(sorted(files.items()))
    write_json(folder / SEAL, {"files": files, "seal": _hash(files)}, indent=1)


def sealed_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes in the seal of a run; empty if the seal is missing or damaged."""
    try:
        return read_model(folder / SEAL, Seal).files if (folder / SEAL).is_file() else {}
    except InputError:
        return {}


def broken(folder: Path) -> list[str]:
    """Return one message per file that does not match the seal; raises an InputError if there is no seal."""
    if not (folder / SEAL).is_file():
        raise InputError(f"{folder}: has no {SEAL}: it is not a run, or the run is not finished")
    try:
        content = read_model(folder / SEAL, Seal)
    except InputError:
        return [f"{folder / SEAL}: is damaged"]
    lines = [] if _hash(content.files) == content.seal else [f"{folder / SEAL}: has changed since it was written"]
    names = {name: hash for name, hash in content.files.items() if _inside(name)}
    return lines + damaged_files(folder, names)


def _inside(name: str) -> bool:
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _hash(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
