"""The executor that shares the items out among processes of this machine."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_task: Callable[[Any], Any] | None = None  # of a worker process, set once when it starts


class Processes:
    """A pool of processes for CPUs. Each is started afresh, gets the task once, and then item after item."""

    def __init__(self, count: int) -> None:
        self.count = count

    def map(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The result of every item, in order; an exception of one is raised here."""
        if len(items) < 2:
            return [task(item) for item in items]
        import torch

        context = multiprocessing.get_context("spawn")  # a fork would inherit locks that torch's threads hold
        workers = min(self.count, len(items))
        with ProcessPoolExecutor(workers, context, _begin, (task, torch.get_num_threads())) as pool:
            return list(pool.map(_work, items))


def _begin(task: Callable[[Any], Any], threads: int) -> None:
    """Take the task. As many threads as in the parent: with another number sums may round otherwise."""
    import torch

    global _task  # noqa: PLW0603 - the one thing that a worker process knows
    _task = task
    torch.set_num_threads(threads)


def _work(item: Any) -> Any:
    assert _task is not None
    return _task(item)
