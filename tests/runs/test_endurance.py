"""A run survives kills, signals, a full disk and changed files."""

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
    process: subprocess.Popen[str] = subprocess.Popen(command, text=True, env=ENVIRONMENT, **pipes, **options)  # type: ignore[call-overload]
    return process


def enable_interrupts() -> None:
    """Restore the default handling of SIGINT, which a shell disables for background processes."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(file: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until a file exists; fail if the process ends first."""
    while not file.exists() and process.poll() is None:
        time.sleep(0.02)
    assert process.poll() is None


def test_a_run_survives_kills_and_interruptions_at_random_moments(
    config: Path, finished_run: Path, tmp_path: Path
) -> None:
    """One run is killed at random moments, then terminated and interrupted, and resumed each time."""
    folder, moments = tmp_path / "run", random.Random(0)
    for begun in ("data", "proposer", "bags"):
        process = start("run", config, "--out", folder)
        wait_for(folder / begun / "begun.json", process)
        time.sleep(moments.uniform(0, 0.8))
        process.kill()
        process.communicate()
    for number, status, message in ((signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "pairloc: interrupted")):
        process = start("run", config, "--out", folder, preexec_fn=enable_interrupts)
        assert process.stdout is not None
        while " ..." not in (line := process.stdout.readline()) and line:  # the work has begun
            pass
        process.send_signal(number)
        text, _ = process.communicate(timeout=20)
        assert process.returncode == status, text
        assert message in text
        assert "Traceback" not in text
    text, _ = start("run", config, "--out", folder).communicate(timeout=600)
    assert results(folder) == results(finished_run), text
    assert broken(folder) == []
    assert not [file for file in folder.rglob(".*") if file.name != ".lock"]  # no partial files are left


@pytest.mark.parametrize("max_bytes", [60_000, 1_000_000])
def test_a_full_disk_is_reported_and_the_run_resumes(
    config: Path, finished_run: Path, tmp_path: Path, max_bytes: int
) -> None:
    """A limit on file sizes simulates a full disk: writing fails in the middle of a file."""
    folder = tmp_path / "run"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))

    process = start("run", config, "--out", folder, preexec_fn=limit)
    message, _ = process.communicate(timeout=600)
    assert process.returncode == 2, message
    assert "too large" in message.lower(), message
    assert f"pairloc: {folder}" in message
    assert "Traceback" not in message
    if max_bytes > 60_000:
        return
    message, _ = start("run", config, "--out", folder).communicate(timeout=600)
    assert results(folder) == results(finished_run), message


def test_a_folder_that_cannot_be_written_is_named(config: Path) -> None:
    process = start("run", config, "--out", "/proc/run")
    message, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "pairloc: /proc/run" in message
    assert "Traceback" not in message


def test_a_flipped_bit_in_any_file_is_detected(finished_run: Path, tmp_path: Path) -> None:
    folder = copied(finished_run, tmp_path / "run")
    assert broken(folder) == []
    files = [
        f for f in folder.rglob("*") if f.is_file() and not f.name.startswith(".") and "tensorboard" not in f.parts
    ]
    assert any(file.name == SEAL for file in files)
    kinds = {
        (file.relative_to(folder).parts[0], file.suffix): file for file in files
    }  # one file of each kind per stage
    assert len(kinds) > 20
    for file in kinds.values():
        content = file.read_bytes()
        file.unlink()  # large files are links to those of the original run
        file.write_bytes(content)
        flip(file)
        assert any(str(file) in line for line in broken(folder)), file
        file.write_bytes(content)
    (folder / "full" / "boxes.json").unlink()
    assert broken(folder) == [f"{folder / 'full' / 'boxes.json'}: is missing"]
