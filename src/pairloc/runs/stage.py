"""A stage of a run: what it depends on, what it does, and the record it leaves behind.

RUN/STAGE/begun.json    the key of the stage, written before its work
RUN/STAGE/done.json     the same key, the hash of every file, and how it was made; written after its work
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
from pairloc.io import Model, damaged, files_in, ledger, read_model, write_json
from pairloc.platform import peak_memory

if TYPE_CHECKING:
    from pairloc.runs.run import Run

BEGUN, DONE = "begun.json", "done.json"
_UNCOUNTED = "tensorboard"  # a folder of event files, which hold times


@dataclass(frozen=True)
class Stage:
    """A part of a run. Its key is made of its name, format, settings and inputs; nothing else redoes it."""

    name: str
    work: Callable[["Run", Path], None]
    inputs: tuple[str, ...] = ()  # earlier stages
    settings: Any = None  # JSON of all that changes its result
    format: int = 1  # raised when the stage's files change their meaning
    results: tuple[str, ...] = ()  # files that later stages build on; all of them unless named
    kept: bool = True  # aside when it is made again with other settings; what takes no time is not
    publishes: tuple[str, ...] = ()  # files that are copied to the top of the run's folder
    title: str = ""  # what the log calls it; a stage without a title is not logged


class Begun(BaseModel):
    """What is written before the work."""

    model_config = ConfigDict(frozen=True)
    key: str
    inputs: dict[str, str] = {}  # the content of every input it builds on


class Record(BaseModel):
    """What is written after the work; `seconds` and what follows are for people."""

    model_config = ConfigDict(frozen=True)
    key: str
    files: dict[str, str]  # hash by name
    inputs: dict[str, str] = {}  # the content of every input it was built on
    seconds: float
    peak_bytes: int | None = None
    peak_gpu_bytes: int | None = None
    made_with: dict[str, str] = {}
    checksum: str = ""  # of all the other fields

    def own_checksum(self) -> str:
        """What `checksum` has to be."""
        return hashlib.sha256(json.dumps(self.model_dump(exclude={"checksum"}), sort_keys=True).encode()).hexdigest()


def keys(stages: Mapping[str, Stage]) -> dict[str, str]:
    """The key of every stage, from its own settings and the keys of its inputs."""
    found: dict[str, str] = {}
    for stage in stages.values():
        content = [stage.name, stage.format, stage.settings, [found[name] for name in stage.inputs]]
        text = json.dumps(content, sort_keys=True, default=str)
        found[stage.name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def content(stage: Stage, record: Record) -> str:
    """The hash of what later stages build on. Files that hold times may differ when a stage is done again."""
    names = stage.results or tuple(record.files)
    return hashlib.sha256(json.dumps({name: record.files.get(name) for name in sorted(names)}).encode()).hexdigest()


def begin(folder: Path, key: str, inputs: dict[str, str]) -> None:
    """Note what a folder is being filled with."""
    write_json(folder / BEGUN, {"key": key, "inputs": inputs})


def finish(folder: Path, key: str, inputs: dict[str, str], seconds: float, device: str, seed: int) -> Record:
    """Note that a folder is filled, with the hash of every file."""
    import numpy
    import torch
    import torchvision

    names = [name for name in files_in(folder) if name not in (BEGUN, DONE) and _UNCOUNTED not in Path(name).parts]
    gpu = torch.cuda.max_memory_allocated() if device == "cuda" else None
    made = {
        "command": " ".join(sys.argv), "pairloc": __version__, "python": machine.python_version(),
        "torch": torch.__version__, "torchvision": torchvision.__version__, "numpy": numpy.__version__,
        "device": device, "seed": str(seed),
    }  # fmt: skip
    record = Record(
        key=key, files=ledger(folder, names), inputs=inputs, seconds=round(seconds, 3), peak_bytes=peak_memory(),
        peak_gpu_bytes=gpu, made_with=made,
    )  # fmt: skip
    record = record.model_copy(update={"checksum": record.own_checksum()})
    write_json(folder / DONE, record.model_dump(), indent=1)
    return record


def record_of(folder: Path) -> Record | None:
    """The record of a finished stage; None where there is none, or none that is as it was written."""
    record = _read(folder / DONE, Record)
    return record if record is not None and record.checksum == record.own_checksum() else None


def begun_of(folder: Path) -> Begun | None:
    """What a folder was begun with."""
    return _read(folder / BEGUN, Begun)


def begun_key(folder: Path) -> str | None:
    """The key of the work that a folder was begun for."""
    begun = begun_of(folder)
    return None if begun is None else begun.key


def is_stage(folder: Path) -> bool:
    """Whether a folder is one that a run made."""
    return any((folder / name).is_file() for name in (BEGUN, DONE))


def damage(folder: Path, record: Record) -> list[str]:
    """A line for every file of a stage that is not what it wrote."""
    return damaged(folder, record.files)


def _read(file: Path, model: type[Model]) -> Model | None:
    try:
        return read_model(file, model) if file.is_file() else None
    except InputError:
        return None
