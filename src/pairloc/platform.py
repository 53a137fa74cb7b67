"""What differs between operating systems and machines: locks, memory, processors, devices."""

import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairloc.errors import InputError

DEVICES = ("cpu", "cuda", "mps")
_SHARED = Path("/dev/shm")  # noqa: S108 - where torch's processes hand tensors over on Linux


def _optional(name: str) -> Any:
    """A module of the standard library that only some systems have, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock file; if another process holds it, raise an InputError that says `refusal`.

    The file is never opened through a symbolic link, and its content is not touched.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        file = os.open(path, flags, 0o644)
    except OSError as error:
        raise InputError(f"{path}: cannot be used as a lock ({(error.strerror or str(error)).lower()})") from error
    try:
        if not _lock(file):
            raise InputError(refusal)
        yield
    finally:
        os.close(file)


def _lock(file: int) -> bool:
    """Lock an open file until it is closed; whether that worked. A system without locks is trusted."""
    fcntl, msvcrt = _optional("fcntl"), _optional("msvcrt")
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def peak_memory() -> int | None:
    """The most bytes this process has held so far; None where the system does not say."""
    resource = _optional("resource")
    if resource is None:
        return None
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory() -> int:
    """Bytes of this machine's memory; 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def room_for_tensors() -> int:
    """Bytes of tensors that may wait between processes: a part of the memory, and of what they may share."""
    shared = shutil.disk_usage(_SHARED).free // 2 if _SHARED.is_dir() else memory()
    return min(memory() // 4, shared)


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def learning_device(device: str) -> str:
    """Where scores are learned and problems solved: on a CPU where the device has no double precision."""
    return "cpu" if device == "mps" else device


def choose_device(name: str) -> str:
    """The device a user means: `auto` takes a GPU where there is one. An unknown or missing one is an InputError."""
    import torch

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there.get(name, False):
        raise InputError(f"device {name!r}: is not here; use {' or '.join(n for n in DEVICES if there[n])}, or auto")
    return name
