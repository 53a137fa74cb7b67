"""A run's seal: the hash of every file in it, so that a byte that changed afterwards is found and named."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pairloc.errors import InputError
from pairloc.io import read_json, sha256, write_json

SEAL = "seal.json"
_THREADS = 4  # that read files


def seal(folder: Path) -> None:
    """Write the hashes of all files below a folder, and the hash of those hashes."""
    names = _names(folder)
    with ThreadPoolExecutor(_THREADS) as pool:
        files = dict(zip(names, pool.map(lambda name: sha256(folder / name), names), strict=True))
    write_json(folder / SEAL, {"files": files, "seal": _hash(files)}, indent=1)


def broken(folder: Path) -> list[str]:
    """What is not as it was sealed: a line a file."""
    if not (folder / SEAL).is_file():
        raise InputError(f"{folder}: has no {SEAL}: it is not a run, or it is not finished")
    try:
        content = read_json(folder / SEAL)
        files, sealed = dict(content["files"]), content["seal"]
    except (InputError, KeyError, TypeError, ValueError):
        return [f"{folder / SEAL}: is damaged"]
    lines = [] if _hash(files) == sealed else [f"{folder / SEAL}: is not what was written"]
    there = set(_names(folder))
    for name, expected in files.items():
        if name not in there:
            lines.append(f"{folder / name}: is gone")
        elif sha256(folder / name) != expected:
            lines.append(f"{folder / name}: is not what was written")
    return lines


def _names(folder: Path) -> list[str]:
    """Files below a folder; hidden ones are locks and unfinished work."""
    names = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(
        name.as_posix() for name in names if name.name != SEAL and not any(p.startswith(".") for p in name.parts)
    )


def _hash(files: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
