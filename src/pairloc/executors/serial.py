"""The executor that runs every task in this process."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Serial:
    """Runs the items one after the other in this process."""

    def map(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Apply `task` to every item and return the results in order."""
        return [task(item) for item in items]

    def stream(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the results in order, each when it is asked for."""
        return map(task, items)
