"""What a run survives: kills at any moment, a polite end, a full disk, a byte that changes."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import results
from pairloc.runs.sealing import SEAL, broken
from runs.calling import copied, flip

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def start(*arguments: object, **options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "pairloc", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    found: subprocess.Popen[str] = subprocess.Popen(command, text=True, env=ENVIRONMENT, **pipes, **options)  # type: ignore[call-overload]
    return found


def listen() -> None:
    """What a shell starts in the background ignores SIGINT, and so does all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(file: Path, process: "subprocess.Popen[str]") -> None:
    """Until a file is there or the process is not."""
    while not file.exists() and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None


def test_kills_at_random_moments_a_polite_end_and_an_interruption(config: Path, whole: Path, tmp_path: Path) -> None:
    """One run: killed at random moments, asked to end twice, and gone on with each time."""
    folder, moments = tmp_path / "run", random.Random(0)
    for begun in ("data", "proposer", "bags"):
        process = start("run", config, "--out", folder)
        wait_for(folder / begun / "begun.json", process)
        time.sleep(moments.uniform(0, 0.8))
        process.kill()
        process.communicate()
    for number, status, said in ((signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "pairloc: interrupted")):
        process = start("run", config, "--out", folder, preexec_fn=listen)
        assert process.stdout is not None
        while " ..." not in (line := process.stdout.readline()) and line:  # it is at work
            pass
        process.send_signal(number)
        text, _ = process.communicate(timeout=20)
        assert process.returncode == status, text
        assert said in text
        assert "Traceback" not in text
    text, _ = start("run", config, "--out", folder).communicate(timeout=600)
    assert results(folder) == results(whole), text
    assert broken(folder) == []
    assert not [file for file in folder.rglob(".*") if file.name != ".lock"]  # nothing half-written lies about


@pytest.mark.parametrize("most", [60_000, 1_000_000])
def test_a_disk_that_takes_no_more_is_said_and_the_run_goes_on(
    config: Path, whole: Path, tmp_path: Path, most: int
) -> None:
    """A limit on the size of files stands for a full disk: writing fails in the middle of a file."""
    folder = tmp_path / "run"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    process = start("run", config, "--out", folder, preexec_fn=limit)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 2, said
    assert "too large" in said.lower(), said
    assert f"pairloc: {folder}" in said
    assert "Traceback" not in said
    if most > 60_000:
        return
    said, _ = start("run", config, "--out", folder).communicate(timeout=600)
    assert results(folder) == results(whole), said


def test_a_folder_that_cannot_be_written_is_named(config: Path) -> None:
    process = start("run", config, "--out", "/proc/run")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "pairloc: /proc/run" in said
    assert "Traceback" not in said


def test_a_flipped_byte_anywhere_is_found_and_named(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "run")
    assert broken(folder) == []
    files = [
        f for f in folder.rglob("*") if f.is_file() and not f.name.startswith(".") and "tensorboard" not in f.parts
    ]
    assert any(file.name == SEAL for file in files)
    kinds = {(file.relative_to(folder).parts[0], file.suffix): file for file in files}  # one of each kind a stage
    assert len(kinds) > 20
    for file in kinds.values():
        content = file.read_bytes()
        file.unlink()  # large ones are shared with the run this is a copy of
        file.write_bytes(content)
        flip(file)
        assert any(str(file) in line for line in broken(folder)), file
        file.write_bytes(content)
    (folder / "full" / "boxes.json").unlink()
    assert broken(folder) == [f"{folder / 'full' / 'boxes.json'}: is gone"]
