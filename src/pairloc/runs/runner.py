"""The runner: runs the unfinished stages, and keeps results of other settings aside.

RUN/config.json                settings
RUN/STAGE/                     result of a stage
RUN/aside/STAGE-KEY/           its result with other settings or inputs, reused if those come back
RUN/aside/STAGE-damaged-KEY/   a result that is not reused: it is damaged, or its inputs have been recomputed
RUN/seal.json                  hash of every file
"""

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairloc.errors import InputError
from pairloc.io import (
    copy_file,
    read_json,
    refuse_links,
    refuse_other_work,
    remove_partial_files,
    sha256,
    write_json,
)
from pairloc.platform import locked
from pairloc.runs.sealing import seal, sealed_hashes
from pairloc.runs.stage import (
    BEGUN,
    DONE,
    Record,
    Stage,
    begin,
    begun_key,
    begun_of,
    content_hash,
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
    """Return every stage with its state: done, resumable, pending, kept aside, or changed."""
    found = []
    for name, key in keys(run.stages).items():
        folder = run.folder / name
        record = record_of(folder)
        if record is not None and record.key == key:
            state = "done"
        elif begun_key(folder) == key:
            state = "resumable"
        elif _kept_aside(run.folder, name, key) is not None:
            state = "kept aside, will be restored"
        elif folder.is_dir():
            old = ", old result kept aside" if run.stages[name].kept else ""
            state = f"settings or inputs changed: will run again{old}"
        else:
            state = "pending"
        found.append((name, state))
    return found


def work(run: "Run") -> None:
    """Run the unfinished stages, copy their published files to the top of the folder, and seal the folder."""
    folder = run.folder
    refuse_other_work(folder, is_run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({(error.strerror or str(error)).lower()})") from error
    with locked(folder / LOCK, f"{folder}: another run is writing here; wait for it, or stop it"):
        refuse_links(folder)
        remove_partial_files(folder)
        for name in run.stages:
            refuse_other_work(folder / name, is_stage)
        write_json(folder / CONFIG, {"made_by": MADE_BY, "settings": run.settings.model_dump(mode="json")}, indent=1)
        published: dict[str, str] = {}
        hashes: dict[str, str] = {}  # content hash of every stage so far
        for stage, key in zip(run.stages.values(), keys(run.stages).values(), strict=True):
            inputs = {name: hashes[name] for name in stage.inputs}
            record = _reuse(run, stage, key, inputs) or _execute(run, stage, key, inputs)
            hashes[stage.name] = content_hash(stage, record)
            published |= _publish(run, stage, record)
        seal(folder, run.stages, published, [CONFIG])


def require_done(run: "Run", names: Iterable[str]) -> None:
    """Raise an InputError unless these stages are finished and undamaged."""
    for name, key in keys(run.stages).items():
        if name in names:
            record = record_of(run.folder / name)
            if record is None or record.key != key:
                raise InputError(f"{run.folder}: the stage {name} is not finished; finish the run first")
            for line in damage(run.folder / name, record):
                raise InputError(f"{line}; repeat the run to restore it")


def is_run(folder: Path) -> bool:
    """Return whether a folder contains a run; raise an InputError if its config.json has another origin."""
    file = folder / CONFIG
    if not file.is_file() or file.is_symlink():
        return False
    content: Any = read_json(file)
    current_format = isinstance(content, dict) and content.get("made_by") == MADE_BY
    old_format = isinstance(content, dict) and {"data", "methods", "learning"} <= set(content)
    if not (current_format or old_format):
        raise InputError(f"{file}: was not written by a run; choose another folder")
    return True


def _reuse(run: "Run", stage: Stage, key: str, inputs: dict[str, str]) -> Record | None:
    """Return the record of a finished, undamaged stage; move any other result of it aside and return None."""
    folder = run.folder / stage.name
    kept = _kept_aside(run.folder, stage.name, key)
    if kept is not None and begun_key(folder) != key:
        if folder.is_dir():
            _set_aside(run, stage.name, "was made with other settings or inputs")
        kept.rename(folder)
        run.log(f"{stage.title}: reusing the earlier result with these settings")
    record = record_of(folder)
    if record is not None and record.key == key:
        lines = damage(folder, record)
        if begun_key(folder) != key:
            lines.append(f"{folder / BEGUN}: has changed since it was written")
        if not lines and record.inputs == inputs:
            return record
        why = f"is damaged ({lines[0]})" if lines else "depends on results that have been recomputed"
        _set_aside(run, stage.name, why, unusable=True)
    elif folder.is_dir() and any(folder.iterdir()):
        begun = begun_of(folder)
        if begun is None or begun.key != key:
            _set_aside(run, stage.name, "was made with other settings or inputs")
        elif (folder / DONE).is_file():
            _set_aside(
                run, stage.name, f"is damaged ({folder / DONE}: has changed since it was written)", unusable=True
            )
        elif begun.inputs and begun.inputs != inputs:
            _set_aside(run, stage.name, "was started from results that have been recomputed", unusable=True)
    return None


def _execute(run: "Run", stage: Stage, key: str, inputs: dict[str, str]) -> Record:
    folder, start = run.folder / stage.name, time.perf_counter()
    begin(folder, key, inputs)
    if stage.title:
        run.log(f"{stage.title} ...")
    stage.work(run, folder)
    seconds = time.perf_counter() - start
    record = finish(folder, key, inputs, seconds, run.device, run.settings.seed)
    if stage.title:
        peak = None if run.weights is not None else record.peak_bytes  # of interest only if a run trains
        run.log(f"{stage.title}: {seconds:.1f} s" + (f", peak memory {peak / 1e9:.1f} GB" if peak else ""))
    return record


def _kept_aside(run: Path, stage: str, key: str) -> Path | None:
    """Return the folder of a kept result with this key: a finished one if there is any, else an unfinished one."""
    found = sorted((run / ASIDE).glob(f"{stage}-{key[:12]}*"))
    finished = [folder for folder in found if (record := record_of(folder)) is not None and record.key == key]
    begun = [folder for folder in found if begun_key(folder) == key]
    return next(iter(finished + begun), None)


def _set_aside(run: "Run", name: str, why: str, *, unusable: bool = False) -> None:
    """Move a stage's folder or a published file aside; a result that is cheap to recompute is deleted."""
    source = run.folder / name
    if source.is_dir() and not run.stages[name].kept:
        shutil.rmtree(source)
        return
    label = (begun_key(source) or "")[:12] if source.is_dir() else time.strftime("%Y%m%d-%H%M%S")
    label = f"{UNUSABLE}-{label}" if unusable else label
    destination = run.folder / ASIDE / f"{name}-{label}"
    number = 2
    while destination.exists():
        destination, number = run.folder / ASIDE / f"{name}-{label}-{number}", number + 1
    destination.parent.mkdir(exist_ok=True)
    source.rename(destination)
    if name in run.stages:
        run.log(f"{run.stages[name].title}: the earlier result {why}; it is kept in {run.folder / ASIDE}")
    else:
        run.log(f"{name}: {why}; kept as {destination.relative_to(run.folder)}")


def _publish(run: "Run", stage: Stage, record: Record) -> dict[str, str]:
    """Copy a stage's published files to the top of the run; files that a user changed there are moved aside."""
    before, published = sealed_hashes(run.folder), {}
    for name in stage.publishes:
        top, new = run.folder / name, record.files.get(name)
        current = sha256(top) if top.is_file() else None
        if current is not None and current not in (new, before.get(name)):
            _set_aside(run, name, "was changed since it was written")
            current = None
        if new is None and current is not None:
            top.unlink()
        elif new is not None and current != new:
            copy_file(run.folder / stage.name / name, top)
        if new is not None:
            published[name] = new
    return published


def set_aside_size(folder: Path) -> tuple[list[str], int]:
    """Return the names of the results that a run keeps aside, and their total size in bytes."""
    aside = folder / ASIDE
    if not is_run(folder):
        raise InputError(f"{folder}: is not a run; give the folder of a run")
    names = sorted(entry.name for entry in aside.iterdir()) if aside.is_dir() else []
    return names, sum(file.stat().st_size for file in aside.rglob("*") if file.is_file()) if names else 0
