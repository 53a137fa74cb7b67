"""Stages in a folder: each reads what earlier ones wrote, and is skipped while its settings and inputs stay the same.

FOLDER/config.json        the settings
FOLDER/STAGE/             what a stage wrote; begun.json holds its key, done.json its key, time, memory and hashes
"""

import fcntl
import hashlib
import json
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from pairloc import __version__
from pairloc.errors import InputError
from pairloc.io import read_json, sha256, write_json
from pairloc.runs.sealing import seal
from pairloc.sharing import ALONE, Share

Say = Callable[[str], None]
BEGUN, DONE, CONFIG, LOCK = "begun.json", "done.json", "config.json", ".lock"


@dataclass(frozen=True)
class Stage:
    """A part of a run: what it depends on, and what it does in its folder."""

    name: str
    settings: object  # that its result depends on
    inputs: tuple[str, ...]  # earlier stages
    work: Callable[[Path], None]
    shared: bool = False  # all processes of a share do it together; else the first one does it


class Staged:
    """A folder that stages are done in, by one process or several."""

    def __init__(
        self, folder: Path, config: object, stages: Sequence[Stage], device: str, say: Say, share: Share = ALONE
    ) -> None:
        self.folder, self.config, self.device, self.share = folder, config, device, share
        self.say: Say = say if share.leads else lambda line: None
        self.stages = {stage.name: stage for stage in stages}

    def key(self, stage: Stage) -> str:
        """The hash of all a stage's result depends on."""
        content = [__version__, stage.name, stage.settings, [self.key(self.stages[name]) for name in stage.inputs]]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()

    def plan(self) -> list[tuple[str, str]]:
        """Every stage and what will happen to it: done, to be gone on with, or to be done."""
        found = []
        for stage in self.stages.values():
            key, folder = self.key(stage), self.folder / stage.name
            state = "to do"
            if _key_in(folder / DONE) == key:
                state = "done"
            elif _key_in(folder / BEGUN) == key:
                state = "begun, goes on"
            elif folder.is_dir():
                state = "to do again: settings or inputs changed"
            found.append((stage.name, state))
        return found

    def work(self) -> None:
        """Do what is missing. All processes of a share do it together; the first one writes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder) if self.share.leads else nullcontext():
            if self.share.leads:
                for name in self.stages:
                    _refuse_other_work(self.folder / name)
                write_json(self.folder / CONFIG, self.config, indent=1)
            for stage in self.stages.values():
                self._stage(stage)
            if self.share.leads:
                seal(self.folder)

    def _stage(self, stage: Stage) -> None:
        key, folder = self.key(stage), self.folder / stage.name
        self.share.barrier()
        if _key_in(folder / DONE) == key:
            return
        self.share.barrier()  # all have looked
        start = time.perf_counter()
        if self.share.leads:
            self._begin(folder, key)
            self.say(f"{stage.name} ...")
        if stage.shared:
            self.share.barrier()
            stage.work(folder)
        elif self.share.leads:
            stage.work(folder)
        self.share.barrier()
        if self.share.leads:
            self._end(folder, key, time.perf_counter() - start)

    def _begin(self, folder: Path, key: str) -> None:
        if folder.is_dir() and _key_in(folder / BEGUN) != key:
            _refuse_other_work(folder)
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        write_json(folder / BEGUN, {"key": key})

    def _end(self, folder: Path, key: str, seconds: float) -> None:
        files = {
            str(file.relative_to(folder)): sha256(file)
            for file in sorted(folder.rglob("*"))
            if file.is_file() and file.name not in (BEGUN, DONE) and "tensorboard" not in file.parts
        }
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        facts = {"key": key, "seconds": round(seconds, 3), "peak_bytes": peak, "files": files}
        if self.device == "cuda":
            facts["peak_gpu_bytes"] = torch.cuda.max_memory_allocated()
        write_json(folder / DONE, facts)
        self.say(f"{folder.name}: {seconds:.1f} s, peak memory {peak / 1e9:.1f} GB")


def _refuse_other_work(folder: Path) -> None:
    """A folder that a run did not make is not its to delete."""
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).is_file() for name in (BEGUN, DONE)):
        raise InputError(f"{folder}: already holds other work; name another folder for the run")


def _key_in(file: Path) -> str | None:
    if not file.is_file():
        return None
    try:
        key = read_json(file).get("key")
    except (InputError, AttributeError):
        return None
    return key if isinstance(key, str) else None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder; a second run in it is refused."""
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(f"{folder}: another run is writing here; wait for it, or stop it") from error
        yield
