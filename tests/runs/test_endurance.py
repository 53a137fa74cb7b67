"""What a run survives: kills, a polite end, a full disk, a damaged file, and being done by two processes."""

import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pairloc.settings import FAST
from helpers import TINY_RUN as TINY
from helpers import results
from pairloc.presets import read_config
from pairloc.runs.run import Run

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY)
    return path


def start(*arguments: object, **options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "pairloc", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    found: subprocess.Popen[str] = subprocess.Popen(command, text=True, env=ENVIRONMENT, **pipes, **options)  # type: ignore[call-overload]
    return found


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "whole"
    process = start("run", config, "--out", folder)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return folder


def torchrun(config: Path, folder: Path, *options: str, changes: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """Two processes on one run."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    arguments = ["-m", "pairloc", "run", str(config), "--out", str(folder), *changes]
    return subprocess.Popen([*command, *arguments], text=True, env=ENVIRONMENT, **pipes)  # type: ignore[call-overload,no-any-return]


def test_two_processes_equal_one(config: Path, whole: Path, tmp_path: Path) -> None:
    process = torchrun(config, tmp_path / "run")
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said[-2000:]
    assert results(tmp_path / "run") == results(whole)


def test_two_processes_equal_one_on_the_fast_demo(tmp_path: Path) -> None:
    fast = [("data.scenes", FAST["data"]["scenes"]), *((part, FAST[part]) for part in FAST if part != "data")]
    changes = [word for part, values in fast for n, v in values.items() for word in ("--set", f"{part}.{n}={v}")]  # type: ignore[attr-defined]
    demo = Path(__file__).parents[1] / "configs" / "demo.toml"
    alone = start("run", demo, "--out", tmp_path / "alone", *changes)
    said, _ = alone.communicate(timeout=900)
    assert alone.returncode == 0, said[-2000:]
    together = torchrun(demo, tmp_path / "together", changes=changes)
    said, _ = together.communicate(timeout=900)
    assert together.returncode == 0, said[-2000:]
    assert len(results(tmp_path / "alone")) > 20
    assert results(tmp_path / "together") == results(tmp_path / "alone")


def test_a_killed_worker_does_not_cost_the_run(config: Path, whole: Path, tmp_path: Path) -> None:
    """torchrun starts both again; they go on from what is on disk."""
    folder = tmp_path / "run"
    process = torchrun(config, folder, "--max-restarts=3")
    while not (folder / "proposer" / "begun.json").is_file() and process.poll() is None:
        time.sleep(0.1)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said[-2000:]
    assert said.count("run in ") == 2, said[-2000:]  # it began twice
    assert results(folder) == results(whole)


def test_two_processes_train_one_proposer(config: Path, whole: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared.toml"
    shared.write_text(config.read_text().replace("[proposer]", "[proposer]\nshared = true"))
    process = torchrun(shared, tmp_path / "run")
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said[-2000:]
    curves = [
        [json.loads(line) for line in (folder / "proposer" / "curves.jsonl").read_text().splitlines()]
        for folder in (tmp_path / "run", whole)
    ]
    assert [row["epoch"] for row in curves[0]] == [1, 2]
    for ours, alone in zip(*curves, strict=True):  # the same pictures and the same steps, other proposals drawn
        assert ours["loss_objectness"] == pytest.approx(alone["loss_objectness"], rel=0.3)
        assert math.isfinite(ours["loss_classifier"])


def test_kills_at_random_moments(config: Path, whole: Path, tmp_path: Path) -> None:
    folder, moments = tmp_path / "run", random.Random(0)
    for _ in range(4):
        process = start("run", config, "--out", folder)
        time.sleep(moments.uniform(2, 9))
        process.kill()
        process.communicate()
    said, _ = start("run", config, "--out", folder).communicate(timeout=600)
    assert results(folder) == results(whole), said


def test_a_polite_end_comes_soon_and_the_run_goes_on(config: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("run", config, "--out", folder)
    while not (folder / "proposer").is_dir() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 143
    said, _ = start("run", config, "--out", folder).communicate(timeout=600)
    assert results(folder) == results(whole), said


def test_a_disk_that_takes_no_more_is_said_and_the_run_goes_on(config: Path, whole: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: writing fails in the middle of a file."""
    folder = tmp_path / "run"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    process = start("run", config, "--out", folder, preexec_fn=limit)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 2, said
    assert "too large" in said.lower(), said
    assert "Traceback" not in said
    said, _ = start("run", config, "--out", folder).communicate(timeout=600)
    assert results(folder) == results(whole), said


def test_a_folder_that_cannot_be_written_is_named(config: Path) -> None:
    process = start("run", config, "--out", "/proc/run")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "pairloc: " in said
    assert "/proc/run" in said
    assert "Traceback" not in said


def test_a_flipped_byte_anywhere_is_found_and_named(config: Path, tmp_path: Path) -> None:
    from pairloc.runs.sealing import SEAL, broken

    folder = tmp_path / "run"
    Run(folder, read_config(config), say=lambda line: None).run()
    assert broken(folder) == []
    files = [f for f in folder.rglob("*") if f.is_file() and not f.name.startswith(".")]
    assert any(file.name == SEAL for file in files)
    for file in files:
        content = file.read_bytes()
        place = len(content) // 2
        if not content:
            continue
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert any(str(file) in line for line in broken(folder)), file
        file.write_bytes(content)
    (folder / "full" / "boxes.json").unlink()
    assert broken(folder) == [f"{folder / 'full' / 'boxes.json'}: is gone"]
