"""What a baseline records of its re-trainings and re-localizations, as the alternating loop does of its own."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pairloc.localization.alternate import HalfStep


class HalfSteps:
    """Sums up the seconds and the changed boxes of every half step; a step may be recorded in parts, class by class."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, bool], float] = {}  # by round and whether it is a re-localization
        self._changed: dict[int, int] = {}

    @contextmanager
    def retraining(self, number: int) -> Iterator[None]:
        """Time what is done inside as re-training of round `number`."""
        with self._timed(number, relocalizes=False):
            yield

    @contextmanager
    def relocalization(self, number: int) -> Iterator[None]:
        """Time what is done inside as re-localization of round `number`; round 0 is the first selection."""
        with self._timed(number, relocalizes=True):
            yield

    @contextmanager
    def _timed(self, number: int, *, relocalizes: bool) -> Iterator[None]:
        start = time.perf_counter()
        yield
        key = (number, relocalizes)
        self._seconds[key] = self._seconds.get(key, 0.0) + time.perf_counter() - start

    def count(self, number: int, changed: int) -> None:
        """Add boxes that round `number` changed; round 0 changes all."""
        self._changed[number] = self._changed.get(number, 0) + changed

    def changed(self, number: int) -> int:
        """Number of boxes that round `number` changed."""
        return self._changed.get(number, 0)

    def history(self) -> tuple[HalfStep, ...]:
        """Return all half steps in their order; a baseline has no objective."""
        return tuple(
            HalfStep(
                round=number,
                step="re-localize" if relocalizes else "re-train",
                objective=None,
                changed=self.changed(number) if relocalizes else 0,
                kept=True,
                seconds=seconds,
            )
            for (number, relocalizes), seconds in sorted(self._seconds.items())
        )
