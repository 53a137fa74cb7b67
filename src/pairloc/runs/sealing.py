"""A run's seal: the hash of every file in it, so that a byte that changed afterwards is found and named.

The hashes of a stage's files are those its record holds, which were taken when it ended: sealing again cannot make
damage look genuine.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pairloc.errors import InputError
from pairloc.io import damaged, ledger, read_model, write_json
from pairloc.runs.stage import BEGUN, DONE, record_of

SEAL = "seal.json"


class Seal(BaseModel):
    """Hashes by name, and the hash of those hashes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    files: dict[str, str]
    seal: str


def seal(folder: Path, stages: Iterable[str], published: Mapping[str, str], others: Iterable[str]) -> None:
    """Write the seal of a run from the records of its stages, its published files and some others."""
    files = dict(published) | ledger(folder, others)
    for name in stages:
        record = record_of(folder / name)
        if record is not None:
            files |= {f"{name}/{file}": hash for file, hash in record.files.items()}
            files |= ledger(folder, [f"{name}/{BEGUN}", f"{name}/{DONE}"])
    files = dict(sorted(files.items()))
    write_json(folder / SEAL, {"files": files, "seal": _hash(files)}, indent=1)


def sealed(folder: Path) -> dict[str, str]:
    """The hashes of a seal; nothing where there is none that can be read."""
    try:
        return read_model(folder / SEAL, Seal).files if (folder / SEAL).is_file() else {}
    except InputError:
        return {}


def broken(folder: Path) -> list[str]:
    """What is not as it was sealed: a line a file."""
    if not (folder / SEAL).is_file():
        raise InputError(f"{folder}: has no {SEAL}: it is not a run, or it is not finished")
    try:
        content = read_model(folder / SEAL, Seal)
    except InputError:
        return [f"{folder / SEAL}: is damaged"]
    lines = [] if _hash(content.files) == content.seal else [f"{folder / SEAL}: is not what was written"]
    names = {name: hash for name, hash in content.files.items() if _inside(name)}
    return lines + damaged(folder, names)


def _inside(name: str) -> bool:
    return not Path(name).is_absolute() and ".." not in Path(name).parts


def _hash(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
