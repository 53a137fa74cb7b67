"""The executor that distributes items over a Ray cluster: this machine, or many.

Ray is an extra and is imported only when a cluster is asked for. A task may have a method `cost(item)`; then the most
expensive items start first. A task lost with its worker or its machine is done again elsewhere; a task that raises an
exception is not.
"""

import contextlib
import dataclasses
import os
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from pairloc import __version__
from pairloc.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
INSTALL = "pip install 'pairloc[cluster]'"
LOCAL = "local"  # an address: a cluster of this machine alone, started for this process
_RETRIES = 5  # of a task whose worker or machine is lost
_AHEAD = 2  # unfinished results of `stream` per core of the cluster
_KEPT = 32  # parts of tasks that stay in the cluster
_WARM = 16  # parts of tasks that stay in a worker


class Cluster:
    """Workers of a Ray cluster. The parts of a task, such as the target, are sent once and stay in the workers.

    >>> cluster = Cluster("auto")  # the cluster of this machine; "host:6379" or "ray://host:10001" for another one
    >>> cluster.map(abs, [-2, 3])
    [2, 3]
    """

    def __init__(self, address: str = LOCAL) -> None:
        self.address = address
        self._parts: OrderedDict[int, tuple[object, Any]] = OrderedDict()  # id -> the part and its reference

    def map(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Apply `task` to every item and return the results in order; re-raises an exception of a task."""
        if len(items) < 2:
            return [task(item) for item in items]
        found = dict(self._finished(task, items, bounded=False))
        return [found[index] for index in range(len(items))]

    def stream(self, task: Callable[[Item], Result], items: Sequence[Item]) -> Generator[Result]:
        """Yield the results in order, with a bounded number of them in memory."""
        early: dict[int, Result] = {}
        due = 0
        for index, result in self._finished(task, items, bounded=True):
            early[index] = result
            while due in early:
                yield early.pop(due)
                due += 1

    def _finished(
        self, task: Callable[[Item], Result], items: Sequence[Item], *, bounded: bool
    ) -> Generator[tuple[int, Result]]:
        """Yield the index and the result of every item as soon as it is done.

        If `bounded`, items start in order, and only a few beyond the first unfinished one.
        """
        import torch

        ray = connect(self.address)
        threads = torch.get_num_threads()  # another number could round sums differently
        _check_cores(ray, threads)
        job = ray.put(Job(threads, *self._split(ray, task)))
        remote = ray.remote(_perform).options(
            num_cpus=threads, num_gpus=_gpus(ray, task), max_retries=_RETRIES, retry_exceptions=False
        )
        waiting = deque(range(len(items)))
        limit = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1))) if bounded else len(items)
        if not bounded and hasattr(task, "cost"):
            waiting = deque(sorted(waiting, key=lambda index: -task.cost(items[index])))
        pending: dict[Any, int] = {}
        try:
            while waiting or pending:
                first = min(pending.values(), default=waiting[0] if waiting else 0)
                while waiting and waiting[0] - first < limit:
                    index = waiting.popleft()
                    pending[remote.remote(job, items[index])] = index
                (done, *_), _ = ray.wait(list(pending), num_returns=1)
                yield pending.pop(done), _result(ray, done)
        finally:  # after an error or Ctrl-C the other items are of no use
            for reference in pending:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)

    def _split(self, ray: Any, task: Callable[[Item], Result]) -> tuple[Any, dict[str, Any]]:
        """Put the fields of a task into the cluster, each once: the task's type, and a reference for every field."""
        if not dataclasses.is_dataclass(task) or isinstance(task, type):
            return task, {}
        return type(task), {
            field.name: self._reference(ray, getattr(task, field.name)) for field in dataclasses.fields(task)
        }

    def _reference(self, ray: Any, part: object) -> Any:
        """The reference of a part that was sent before, or that is sent now."""
        if id(part) not in self._parts:
            self._parts[id(part)] = (part, ray.put(part))  # keeps the part, so that its id stays its own
        self._parts.move_to_end(id(part))
        while len(self._parts) > _KEPT:
            self._parts.popitem(last=False)
        return self._parts[id(part)][1]

    def __getstate__(self) -> dict[str, object]:
        """Pickle without references, which belong to this process."""
        return {"address": self.address, "_parts": OrderedDict()}


@dataclasses.dataclass(frozen=True)
class Job:
    """A task on its way to a worker."""

    threads: int
    kind: Any  # the type of a task with fields, or the task itself
    fields: dict[str, Any]  # references of the fields
    version: str = __version__

    def task(self) -> Any:
        """The task, whose fields are read from the cluster or were read before."""
        if self.version != __version__:
            raise InputError(
                f"{socket.gethostname()}: has pairloc {__version__}, but the run has {self.version}; install the same"
            )
        return self.kind(**{name: _part(value) for name, value in self.fields.items()}) if self.fields else self.kind


_WARM_PARTS: OrderedDict[str, object] = OrderedDict()  # of this worker


def _part(reference: Any) -> object:
    import ray

    key = reference.hex()
    if key not in _WARM_PARTS:
        _WARM_PARTS[key] = ray.get(reference)
    _WARM_PARTS.move_to_end(key)
    while len(_WARM_PARTS) > _WARM:
        _WARM_PARTS.popitem(last=False)
    return _WARM_PARTS[key]


def _perform(job: Job, item: object) -> object:
    """Do one item of a job in a worker."""
    import torch

    torch.set_num_threads(job.threads)
    return job.task()(item)


def _check_cores(ray: Any, threads: int) -> None:
    """Raise an InputError if no machine has the cores of one task, which would then wait for ever."""
    most = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
    if most < threads:
        raise InputError(
            f"no machine of the cluster has {threads} cores, which a task takes, as many as this process has threads; "
            f"set OMP_NUM_THREADS={max(1, int(most))}"
        )


def _gpus(ray: Any, task: object) -> int:
    """GPUs that an item of a task takes: one if the task can use one and the cluster has any."""
    return int(bool(getattr(task, "uses_gpu", False)) and ray.cluster_resources().get("GPU", 0) > 0)


def _result(ray: Any, reference: Any) -> Any:
    """The result of an item; raises the exception that the item raised."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0][:160]
        raise InputError(f"the cluster lost a task {_RETRIES + 1} times ({reason}); look at its machines") from error


def connect(address: str) -> Any:
    """Connect this process to a cluster, once, and return Ray.

    Raises an InputError if Ray is not installed or the cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        raise InputError(f"a cluster needs Ray, which is not installed: {INSTALL}") from error
    if ray.is_initialized():
        return ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray does from its next version on
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address == LOCAL:
        options["include_dashboard"] = False
    else:
        options["address"] = address
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, AssertionError, OSError, ImportError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"the cluster {address!r} does not answer ({lines[0][:160]}); start one with 'ray start --head', or use "
            f"{LOCAL!r} for this machine alone"
        ) from error
    return ray
