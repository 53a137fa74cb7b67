"""Executors: `map(task, items)` with results in order. Which process does the work is nobody else's business.

A task is a picklable callable; what it needs besides its item is part of it, seeds included, so that one process, a
pool and a cluster give the same results.
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
        """The result of every item, in order."""


def executor(processes: int = 1) -> Executor:
    """This process, or a pool of so many."""
    return Serial() if processes == 1 else Processes(processes)


__all__ = ["Executor", "Processes", "Serial", "executor"]
