"""Progress: what is counted, when lines are printed, and that nothing is lost."""

import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pairloc import progress
from pairloc.progress import duration, track


class Clock:
    """A clock that advances when an item is worked on."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def work(clock: Clock, items: Iterator[object], seconds: float) -> int:
    count = 0
    for _ in items:
        clock.now += seconds
        count += 1
    return count


def test_nothing_is_said_of_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert work(clock, track([], 0, "images"), 5) == 0
    assert capsys.readouterr().err == ""


def test_short_work_is_silent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    assert work(clock, track(range(9), 9, "images"), 0.1) == 9
    assert capsys.readouterr().err == ""


def test_the_first_line_comes_after_a_second_then_one_every_ten(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert work(clock, track(range(120), 120, "images"), 0.5) == 120
    assert capsys.readouterr().err.splitlines() == [
        "images: 2 of 120, about 59 s left",
        "images: 22 of 120, about 49 s left",
        "images: 42 of 120, about 39 s left",
        "images: 62 of 120, about 29 s left",
        "images: 82 of 120, about 19 s left",
        "images: 102 of 120, about 9 s left",
    ]


def test_batches_count_by_their_size(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    work(clock, track([[1] * 8, [1] * 8, [1] * 3], 19, "images", size=len), 60)
    assert capsys.readouterr().err.splitlines() == [
        "images: 8 of 19, about 82 s left",
        "images: 16 of 19, about 22 s left",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (99.4, "99 s"), (100, "2 min"), (3600, "60 min"), (6000, "1 h 40 min"), (90_000, "25 h 0 min")],
)
def test_times_are_said_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_terminal_gets_a_bar_that_moves() -> None:
    program = (
        "import time; from pairloc.progress import track\n"
        "print(sum(1 for _ in map(lambda i: time.sleep(0.05), track([[1, 2]] * 12, 24, 'images', size=len))))"
    )
    parent, child = pty.openpty()
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=child, check=True, timeout=60)
    import os

    os.close(child)
    shown = b""
    try:
        while chunk := os.read(parent, 65536):
            shown += chunk
    except OSError:  # the end of a pseudo-terminal
        pass
    assert done.stdout == b"12\n"
    assert b"images" in shown
    assert b"24" in shown
