"""Options that several verbs share, and how their values become settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pairloc.errors import InputError

if TYPE_CHECKING:
    from pairloc.config import Settings

S = TypeVar("S", bound="Settings")

Format = Annotated[str, typer.Option("--format", help="The format, where it is not recognised by itself.")]
Images = Annotated[Path | None, typer.Option("--images", help="The folder the pictures lie in.")]
Out = Annotated[
    Path, typer.Option("--out", help="The folder to write; it must be new, empty, or from the same command.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same result.")]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda; auto takes a GPU where there is one.")]
Data = Annotated[Path, typer.Option("--data", help="The data set: annotations or tags.")]


def device_of(name: str) -> str:
    """The device a user means."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda") or (name == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--device {name}: is not here; use cpu" + (" or cuda" if torch.cuda.is_available() else ""))
    return name


def settings_of(kind: "type[S]", values: dict[str, object]) -> "S":
    """Settings from options; a value out of range names its option."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise InputError(f"{option}: {first['msg'].lower()}, not {first['input']!r}") from error
