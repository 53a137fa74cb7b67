"""Executors: `map(task, items)` in this process, in a pool or on a cluster, with results in the order of the items.

A task is a picklable callable that contains everything it needs besides its item, seeds included, so that every
executor gives the same results.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from pairloc.executors.cluster import Cluster
from pairloc.executors.processes import Processes
from pairloc.executors.serial import Serial

Item = TypeVar("Item")
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs independent tasks."""

    def map(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Apply `task` to every item and return the results in order."""

    def stream(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the results in order, with a bounded number of them in memory."""


def executor(processes: int = 1, cluster: str | None = None) -> Executor:
    """The executor for a cluster with this address, or for this number of processes; `Serial` for 1."""
    if cluster is not None:
        return Cluster(cluster)
    return Serial() if processes == 1 else Processes(processes)


__all__ = ["Cluster", "Executor", "Processes", "Serial", "executor"]
