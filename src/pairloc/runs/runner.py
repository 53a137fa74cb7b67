"""The runner: does the stages that are not done, and keeps what was made with other settings aside.

RUN/config.json        the settings
RUN/STAGE/             what a stage wrote
RUN/aside/STAGE-KEY/   what it wrote with other settings or inputs; used again when those come back
RUN/aside/STAGE-damaged-KEY/   what is not used again: damaged, or built on what has been made again
RUN/seal.json          the hash of every file
"""

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairloc.errors import InputError
from pairloc.io import copy_file, read_json, refuse_links, refuse_other_work, sha256, write_json
from pairloc.platform import locked
from pairloc.runs.sealing import SEAL, seal, sealed
from pairloc.runs.stage import (
    BEGUN,
    DONE,
    Record,
    Stage,
    begin,
    begun_key,
    begun_of,
    content,
    damage,
    finish,
    is_stage,
    keys,
    record_of,
)

if TYPE_CHECKING:
    from pairloc.runs.run import Run

CONFIG, ASIDE, LOCK = "config.json", "aside", ".lock"
UNUSABLE = "damaged"
MADE_BY = "pairloc run"


def plan(run: "Run") -> list[tuple[str, str]]:
    """Every stage and its state: done, resumable, pending, or changed."""
    found = []
    for name, key in keys(run.stages).items():
        folder = run.folder / name
        record = record_of(folder)
        if record is not None and record.key == key:
            state = "done"
        elif begun_key(folder) == key:
            state = "resumable"
        elif _kept(run.folder, name, key) is not None:
            state = "kept aside, comes back"
        elif folder.is_dir():
            then = "kept aside, done again" if run.stages[name].kept else "done again"
            state = f"settings or inputs changed: {then}"
        else:
            state = "pending"
        found.append((name, state))
    return found


def work(run: "Run") -> None:
    """Do the stages that are not done, publish what they publish, and seal the folder."""
    folder = run.folder
    refuse_other_work(folder, is_run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({(error.strerror or str(error)).lower()})") from error
    with locked(folder / LOCK, f"{folder}: another run is writing here; wait for it, or stop it"):
        refuse_links(folder)
        for name in run.stages:
            refuse_other_work(folder / name, is_stage)
        write_json(folder / CONFIG, {"made_by": MADE_BY, "settings": run.settings.model_dump(mode="json")}, indent=1)
        published: dict[str, str] = {}
        made: dict[str, str] = {}  # the content of every stage so far
        for stage, key in zip(run.stages.values(), keys(run.stages).values(), strict=True):
            inputs = {name: made[name] for name in stage.inputs}
            record = _done(run, stage, key, inputs) or _do(run, stage, key, inputs)
            made[stage.name] = content(stage, record)
            published |= _publish(run, stage, record)
        seal(folder, run.stages, published, [CONFIG])


def require_done(run: "Run", names: Iterable[str]) -> None:
    """Raise an InputError unless these stages are done and undamaged: somebody builds on them."""
    for name, key in keys(run.stages).items():
        if name in names:
            record = record_of(run.folder / name)
            if record is None or record.key != key:
                raise InputError(f"{run.folder}: {name} is not finished; run it to its end first")
            for line in damage(run.folder / name, record):
                raise InputError(f"{line}; run the same command again to make it anew")


def is_run(folder: Path) -> bool:
    """Whether a folder is a run's: by its config, which a stranger's folder would not have."""
    file = folder / CONFIG
    if not file.is_file() or file.is_symlink():
        return False
    content: Any = read_json(file)
    new = isinstance(content, dict) and content.get("made_by") == MADE_BY
    old = isinstance(content, dict) and {"data", "methods", "learning"} <= set(content)
    if not (new or old):
        raise InputError(f"{file}: was not written by a run; name another folder")
    return True


def _done(run: "Run", stage: Stage, key: str, inputs: dict[str, str]) -> Record | None:
    """The record of a stage that is done and undamaged; what is in its way is kept aside."""
    folder = run.folder / stage.name
    back = _kept(run.folder, stage.name, key)
    if back is not None and begun_key(folder) != key:
        if folder.is_dir():
            _set_aside(run, stage.name, "was made with other settings or inputs")
        back.rename(folder)
        run.log(f"{stage.title}: the earlier result with these settings is used again")
    record = record_of(folder)
    if record is not None and record.key == key:
        lines = damage(folder, record)
        if begun_key(folder) != key:
            lines.append(f"{folder / BEGUN}: is not what was written")
        if not lines and record.inputs == inputs:
            return record
        why = f"is damaged ({lines[0]})" if lines else "was built on results that have been made again"
        _set_aside(run, stage.name, why, unusable=True)
    elif folder.is_dir() and any(folder.iterdir()):
        begun = begun_of(folder)
        if begun is None or begun.key != key:
            _set_aside(run, stage.name, "was made with other settings or inputs")
        elif (folder / DONE).is_file():
            _set_aside(run, stage.name, f"is damaged ({folder / DONE}: is not what was written)", unusable=True)
        elif begun.inputs and begun.inputs != inputs:
            _set_aside(run, stage.name, "was begun from results that have been made again", unusable=True)
    return None


def _do(run: "Run", stage: Stage, key: str, inputs: dict[str, str]) -> Record:
    folder, start = run.folder / stage.name, time.perf_counter()
    begin(folder, key, inputs)
    if stage.title:
        run.log(f"{stage.title} ...")
    stage.work(run, folder)
    seconds = time.perf_counter() - start
    record = finish(folder, key, inputs, seconds, run.device, run.settings.seed)
    if stage.title:
        shown = None if run.weights is not None else record.peak_bytes  # for those who train
        run.log(f"{stage.title}: {seconds:.1f} s" + (f", peak memory {shown / 1e9:.1f} GB" if shown else ""))
    return record


def _kept(run: Path, stage: str, key: str) -> Path | None:
    """Where a stage of this key is kept aside: a finished one if there is any, else one that was begun."""
    found = sorted((run / ASIDE).glob(f"{stage}-{key[:12]}*"))
    finished = [folder for folder in found if (record := record_of(folder)) is not None and record.key == key]
    begun = [folder for folder in found if begun_key(folder) == key]
    return next(iter(finished + begun), None)


def _set_aside(run: "Run", name: str, why: str, *, unusable: bool = False) -> None:
    """Move a stage's folder, or a published file, out of the way; what takes no time to make is removed."""
    source = run.folder / name
    if source.is_dir() and not run.stages[name].kept:
        shutil.rmtree(source)
        return
    label = (begun_key(source) or "")[:12] if source.is_dir() else time.strftime("%Y%m%d-%H%M%S")
    label = f"{UNUSABLE}-{label}" if unusable else label
    place = run.folder / ASIDE / f"{name}-{label}"
    number = 2
    while place.exists():
        place, number = run.folder / ASIDE / f"{name}-{label}-{number}", number + 1
    place.parent.mkdir(exist_ok=True)
    source.rename(place)
    if name in run.stages:
        run.log(f"{run.stages[name].title}: the earlier result {why}; it is kept in {run.folder / ASIDE}")
    else:
        run.log(f"{name}: {why}; kept as {place.relative_to(run.folder)}")


def _publish(run: "Run", stage: Stage, record: Record) -> dict[str, str]:
    """Copy a stage's published files to the top of the run; what is there and not ours is kept aside."""
    before, found = sealed(run.folder), {}
    for name in stage.publishes:
        top, new = run.folder / name, record.files.get(name)
        there = sha256(top) if top.is_file() else None
        if there is not None and there not in (new, before.get(name)):
            _set_aside(run, name, "was changed since it was written")
            there = None
        if new is None and there is not None:
            top.unlink()
        elif new is not None and there != new:
            copy_file(run.folder / stage.name / name, top)
        if new is not None:
            found[name] = new
    return found


def set_aside_size(folder: Path) -> tuple[list[str], int]:
    """What is kept aside in a run, and its bytes."""
    place = folder / ASIDE
    if not (folder / SEAL).is_file() and not is_run(folder):
        raise InputError(f"{folder}: is not a run")
    names = sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []
    return names, sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) if names else 0
