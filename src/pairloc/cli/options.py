"""Options that several verbs share, and how their values become settings."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pairloc.errors import InputError

if TYPE_CHECKING:
    from pairloc.settings import Settings

S = TypeVar("S", bound="Settings")
_MOST_WORKERS = 8  # more are no faster

Format = Annotated[str, typer.Option("--format", help="The format, where it is not recognised by itself.")]
Images = Annotated[Path | None, typer.Option("--images", help="The folder the pictures lie in.")]
Out = Annotated[
    Path, typer.Option("--out", help="The folder to write; it must be new, empty, or from the same command.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same result.")]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda; auto takes a GPU where there is one.")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=0, help="Processes that read pictures; unless named a GPU gets some, a CPU none."),
]
Data = Annotated[Path, typer.Option("--data", help="The data set: annotations or tags.")]


def device_of(name: str) -> str:
    """The device a user means."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda") or (name == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--device {name}: is not here; use cpu" + (" or cuda" if torch.cuda.is_available() else ""))
    return name


def workers_of(count: int | None, device: str) -> int:
    """The processes that read pictures: a GPU waits for one alone, a CPU has other work for its cores."""
    if count is not None:
        return count
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    each = cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of torchrun's processes
    return 0 if device == "cpu" else max(0, min(_MOST_WORKERS, each - 2))


def settings_of(kind: "type[S]", values: dict[str, object]) -> "S":
    """Settings from options; a value out of range names its option."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise InputError(f"{option}: {first['msg'].lower()}, not {first['input']!r}") from error
