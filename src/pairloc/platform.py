"""Everything that differs between operating systems and machines: locks, memory, CPU cores, devices."""

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
_SHARED = Path("/dev/shm")  # noqa: S108 - where torch passes tensors between processes on Linux


def _optional(name: str) -> Any:
    """Import a module of the standard library that exists on some systems only; None where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@contextlib.contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold an exclusive lock on a file; if it is already locked, raise an InputError with the message `refusal`.

    Symbolic links are not followed, and the content of the file stays unchanged.
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
    """Try to lock an open file until it is closed; return whether it worked, True on systems without file locks."""
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
    """Peak memory of this process in bytes; None where the system does not report it."""
    resource = _optional("resource")
    if resource is None:
        return None
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory() -> int:
    """Physical memory of this machine in bytes; 8 GiB where the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def room_for_tensors() -> int:
    """Limit in bytes for tensors queued between processes: a quarter of memory, at most half of free `/dev/shm`."""
    shared_memory = shutil.disk_usage(_SHARED).free // 2 if _SHARED.is_dir() else memory()
    return min(memory() // 4, shared_memory)


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def learning_device(device: str) -> str:
    """Device for training scores and solving problems: the CPU instead of MPS, which has no double precision."""
    return "cpu" if device == "mps" else device


def computes_bfloat16(device: str) -> bool:
    """Return whether a device multiplies numbers in bfloat16 itself; others only emulate it, slowly."""
    import torch

    if device == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return device == "cuda"


def mixed_precision(device: str, *, allowed: bool = True) -> contextlib.AbstractContextManager[object]:
    """Context in which a network computes in bfloat16 where the device does, which is faster."""
    import torch

    return torch.autocast(device, dtype=torch.bfloat16, enabled=allowed and computes_bfloat16(device))


def choose_device(name: str) -> str:
    """Resolve a device name; `auto` is CUDA if available, else the CPU.

    Raises an InputError if the device is unknown or not available.
    """
    import torch

    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return "cuda" if available["cuda"] else "cpu"
    if not available.get(name, False):
        choices = " or ".join(device for device in DEVICES if available[device])
        raise InputError(f"device {name!r}: is not available; use {choices}, or auto")
    return name
