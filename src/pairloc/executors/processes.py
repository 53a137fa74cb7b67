"""The executor that shares the items out among processes of this machine."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Processes:
    """A pool of processes for CPUs, started when it is first used. Tensors of a task lie in shared memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def map(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The result of every item, in order; an exception of one is raised here."""
        if len(items) < 2:
            return [task(item) for item in items]
        if self._pool is None:
            import torch

            context = multiprocessing.get_context("spawn")  # a fork would inherit locks that torch's threads hold
            self._pool = ProcessPoolExecutor(self.count, context, _set_threads, (torch.get_num_threads(),))
        return list(self._pool.map(task, items))

    def __getstate__(self) -> dict[str, object]:
        """A pool does not travel to another process."""
        return {"count": self.count, "_pool": None}


def _set_threads(threads: int) -> None:
    """As many threads as in the parent: with another number sums may round otherwise."""
    import torch

    torch.set_num_threads(threads)
