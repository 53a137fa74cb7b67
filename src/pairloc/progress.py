"""Progress on standard error: a bar on a terminal, a plain line every ten seconds elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 10.0


def track(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Iterate over `items` while reporting how many of `total` are done; `what` labels the report."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track as rich_track

        yield from rich_track(items, description=what, total=total, console=Console(stderr=True), transient=True)
        return
    last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)
