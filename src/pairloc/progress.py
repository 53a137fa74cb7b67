"""Progress on standard error: a bar on a terminal; elsewhere a line after a second, then every ten seconds."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

_FIRST_LINE, _NEXT_LINE = 1.0, 10.0  # seconds


def one(item: object) -> int:
    """Count an item as one."""
    return 1


def track(items: Iterable[T], total: int, what: str, size: Callable[[Any], int] = one) -> Iterator[T]:
    """Iterate over `items` while reporting how much of `total` is done and about how long the rest takes.

    An item counts when the next one is asked for. `what` says what is counted, `size` how many of them an item is.
    """
    if sys.stderr.isatty():
        yield from _with_bar(items, total, what, size)
        return
    start = time.monotonic()
    done, due = 0, start + _FIRST_LINE
    for item in items:
        yield item
        done += size(item)
        now = time.monotonic()
        if now >= due and done < total:
            due = now + _NEXT_LINE
            left = duration((now - start) / max(done, 1) * (total - done))
            print(f"{what}: {done} of {total}, about {left} left", file=sys.stderr, flush=True)


def _with_bar(items: Iterable[T], total: int, what: str, size: Callable[[Any], int]) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(task, size(item))


def duration(seconds: float) -> str:
    """Format a time as a person says it.

    >>> duration(42), duration(250), duration(8000)
    ('42 s', '4 min', '2 h 13 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
