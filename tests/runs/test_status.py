"""What a run says of itself while it works, after it was interrupted, and when it is finished."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pairloc.bags.store import written
from pairloc.platform import locked
from pairloc.runs.run import Run, open_run
from pairloc.runs.runner import LOCK
from runs.calling import call, refused


def test_a_finished_run_says_so(finished_run: Path) -> None:
    status, text = call("status", finished_run)
    assert status == 0
    lines = text.splitlines()
    assert lines[-1] == "finished"
    assert [line.split()[1] for line in lines[:-1]] == ["done"] * (len(lines) - 1)
    store = finished_run / "bags" / "target"
    images = len(open_run(finished_run).target)
    assert written(store) == (images, images)


def test_a_run_that_another_process_works_on_says_so_and_stays_as_it_is(finished_run: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in finished_run.rglob("*")}
    with locked(finished_run / LOCK, "taken"):
        assert call("status", finished_run).text.splitlines()[-1] == "a process works on it"
    assert {file: file.stat().st_mtime_ns for file in finished_run.rglob("*")} == before


def test_an_interrupted_run_says_how_many_images_are_done(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = open_run(finished_run).settings
    settings = settings.model_copy(update={"extract": settings.extract.model_copy(update={"shard": 5})})

    def interrupt(batches: Iterable[object], images: int, what: str, **_: object) -> Iterator[object]:
        for number, batch in enumerate(batches):
            if number == 3 and what.endswith(" images"):
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr("pairloc.runs.stages.track", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path / "run", settings, log=lambda line: None).run()
    lines = call("status", tmp_path / "run").text.splitlines()
    assert lines[-1] == "no process works on it; repeat the command that began it to go on"
    assert any(line.startswith("bags") and "begun, " in line and " source images" in line for line in lines), lines


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path) in refused("status", tmp_path)
