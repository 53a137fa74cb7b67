"""What a run has done so far, seen from another terminal or another machine."""

from pathlib import Path

from pairloc.bags.store import PLAN, written
from pairloc.errors import InputError
from pairloc.platform import locked
from pairloc.runs.run import open_run
from pairloc.runs.runner import LOCK


def status(folder: Path) -> list[str]:
    """Return a line for every stage of a run, and one that says whether a process works on it.

    Raises an InputError if the folder is not a run.
    """
    run = open_run(folder, log=lambda line: None)
    plan, lines = run.plan(), []
    for name, state in plan:
        progress = _images(folder / name) if state == "resumable" else ""
        lines.append(f"{name:14} {'begun' if state == 'resumable' else state}{progress}")
    if _is_locked(folder / LOCK):
        return [*lines, "a process works on it"]
    finished = all(state == "done" for _, state in plan)
    return [*lines, "finished" if finished else "no process works on it; repeat the command that began it to go on"]


def _images(stage: Path) -> str:
    """How far the extraction of bags in a stage is."""
    stores = [store for store in sorted(stage.glob("*")) if (store / PLAN).is_file()]
    counts = [(store.name, *written(store)) for store in stores]
    return "".join(f", {done} of {total} {name} images" for name, done, total in counts)


def _is_locked(lock: Path) -> bool:
    if not lock.is_file():
        return False
    try:
        with locked(lock, "locked"):
            return False
    except InputError:
        return True
