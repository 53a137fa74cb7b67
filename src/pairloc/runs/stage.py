"""A stage of a run: its dependencies, its work, and the record of its result.

RUN/STAGE/begun.json    cache key and inputs, written before the work
RUN/STAGE/done.json     cache key, hash of every file and provenance, written after the work
"""

import hashlib
import json
import platform as machine
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from pairloc import __version__
from pairloc.errors import InputError
from pairloc.io import Model, damaged_files, file_hashes, files_in, read_model, write_json
from pairloc.platform import peak_memory

if TYPE_CHECKING:
    from pairloc.runs.run import Run

BEGUN, DONE = "begun.json", "done.json"
_NOT_HASHED = "tensorboard"  # folder of event files, which contain times


@dataclass(frozen=True)
class Stage:
    """A part of a run. It runs again only if its cache key changes: name, format, settings and inputs."""

    name: str
    work: Callable[["Run", Path], None]
    inputs: tuple[str, ...] = ()  # names of earlier stages
    settings: Any = None  # JSON of everything else that affects the result
    format: int = 1  # increased when the meaning of the stage's files changes
    results: tuple[str, ...] = ()  # files that later stages use; empty means all files
    kept: bool = True  # whether an old result is kept aside; False if it is cheap to recompute
    publishes: tuple[str, ...] = ()  # files to copy to the top of the run's folder
    title: str = ""  # name in the log; stages without one are not logged


class Begun(BaseModel):
    """Content of begun.json."""

    model_config = ConfigDict(frozen=True)
    key: str
    inputs: dict[str, str] = {}  # content hash of every input


class Record(BaseModel):
    """Content of done.json; `seconds` to `made_with` are for information only."""

    model_config = ConfigDict(frozen=True)
    key: str
    files: dict[str, str]  # hash of every file by its name
    inputs: dict[str, str] = {}  # content hash of every input
    seconds: float
    peak_bytes: int | None = None
    peak_gpu_bytes: int | None = None
    made_with: dict[str, str] = {}
    checksum: str = ""  # hash of all other fields

    def compute_checksum(self) -> str:
        """Return the hash of all other fields, which `checksum` must equal."""
        return hashlib.sha256(json.dumps(self.model_dump(exclude={"checksum"}), sort_keys=True).encode()).hexdigest()


def keys(stages: Mapping[str, Stage]) -> dict[str, str]:
    """Return the cache key of every stage, from its settings and the keys of its inputs."""
    cache_keys: dict[str, str] = {}
    for stage in stages.values():
        parts = [stage.name, stage.format, stage.settings, [cache_keys[name] for name in stage.inputs]]
        text = json.dumps(parts, sort_keys=True, default=str)
        cache_keys[stage.name] = hashlib.sha256(text.encode()).hexdigest()
    return cache_keys


def content_hash(stage: Stage, record: Record) -> str:
    """Return the hash of the files that later stages use; other files may contain times, which differ between runs."""
    names = stage.results or tuple(record.files)
    return hashlib.sha256(json.dumps({name: record.files.get(name) for name in sorted(names)}).encode()).hexdigest()


def begin(folder: Path, key: str, inputs: dict[str, str]) -> None:
    """Write begun.json before the work of a stage."""
    write_json(folder / BEGUN, {"key": key, "inputs": inputs})


def finish(folder: Path, key: str, inputs: dict[str, str], seconds: float, device: str, seed: int) -> Record:
    """Write done.json after the work of a stage, with the hash of every file, and return it."""
    import numpy
    import torch
    import torchvision

    names = [name for name in files_in(folder) if name not in (BEGUN, DONE) and _NOT_HASHED not in Path(name).parts]
    gpu = torch.cuda.max_memory_allocated() if device == "cuda" else None
    made_with = {
        "command": " ".join(sys.argv), "pairloc": __version__, "python": machine.python_version(),
        "torch": torch.__version__, "torchvision": torchvision.__version__, "numpy": numpy.__version__,
        "device": device, "seed": str(seed),
    }  # fmt: skip
    record = Record(
        key=key, files=file_hashes(folder, names), inputs=inputs, seconds=round(seconds, 3), peak_bytes=peak_memory(),
        peak_gpu_bytes=gpu, made_with=made_with,
    )  # fmt: skip
    record = record.model_copy(update={"checksum": record.compute_checksum()})
    write_json(folder / DONE, record.model_dump(), indent=1)
    return record


def record_of(folder: Path) -> Record | None:
    """Return the record of a finished stage; None if it is missing or damaged."""
    record = _read(folder / DONE, Record)
    return record if record is not None and record.checksum == record.compute_checksum() else None


def begun_of(folder: Path) -> Begun | None:
    """Return what `begin` wrote; None if it is missing or damaged."""
    return _read(folder / BEGUN, Begun)


def begun_key(folder: Path) -> str | None:
    """Return the cache key that `begin` wrote, or None."""
    begun = begun_of(folder)
    return None if begun is None else begun.key


def is_stage(folder: Path) -> bool:
    """Return whether a folder was written by a stage of a run."""
    return any((folder / name).is_file() for name in (BEGUN, DONE))


def damage(folder: Path, record: Record) -> list[str]:
    """Return one message per file of a stage that has changed or is missing."""
    return damaged_files(folder, record.files)


def _read(file: Path, model: type[Model]) -> Model | None:
    try:
        return read_model(file, model) if file.is_file() else None
    except InputError:
        return None
