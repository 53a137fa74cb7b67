"""The executor that distributes items over processes of this machine."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Processes:
    """A pool of CPU processes, started on first use. Tensors of a task are passed through shared memory."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def map(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Apply `task` to every item and return the results in order; re-raises an exception of a task."""
        return [task(item) for item in items] if len(items) < 2 else list(self._started().map(task, items))

    def stream(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the results in order, with at most two for each process in memory."""
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                if len(pending) >= 2 * self.count:
                    yield pending.popleft().result()
                pending.append(self._started().submit(task, item))
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            import torch

            context = multiprocessing.get_context("spawn")  # a forked process would inherit locks held by torch threads
            self._pool = ProcessPoolExecutor(self.count, context, _set_threads, (torch.get_num_threads(),))
        return self._pool

    def __getstate__(self) -> dict[str, object]:
        """Pickle without the pool, which cannot be sent to another process."""
        return {"count": self.count, "_pool": None}


def _set_threads(threads: int) -> None:
    """Use as many threads as the parent process; another number could round sums differently."""
    import torch

    torch.set_num_threads(threads)
