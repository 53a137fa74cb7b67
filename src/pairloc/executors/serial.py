"""The executor that does everything in this process."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Serial:
    """One item after the other, in this process."""

    def map(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The result of every item, in order."""
        return [task(item) for item in items]
