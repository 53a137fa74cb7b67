"""Executors: `map(task, items)` in this process or in a pool, with results in the order of the items.

A task is a picklable callable that contains everything it needs besides its item, seeds included, so that every
executor gives the same results.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pairloc.executors.processes import Processes
from pairloc.executors.serial import Serial

Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs independent tasks."""

    def map(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Apply `task` to every item and return the results in order."""


def executor(processes: int = 1) -> Executor:
    """The executor for this number of processes: `Serial` for 1, otherwise a pool."""
    return Serial() if processes == 1 else Processes(processes)


__all__ = ["Executor", "Processes", "Serial", "executor"]
