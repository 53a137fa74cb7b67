"""Options shared by several commands, and their conversion to settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pairloc.errors import InputError

if TYPE_CHECKING:
    from pairloc.settings import Settings

S = TypeVar("S", bound="Settings")
_MAX_WORKERS = 8  # more are not faster

Format = Annotated[str, typer.Option("--format", help="Format of the data set; auto recognises it.")]
Images = Annotated[Path | None, typer.Option("--images", help="Folder that holds the images.")]
Out = Annotated[
    Path, typer.Option("--out", help="Folder to write. It must be new, empty, or written by the same command.")
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**62 - 1, help="Random seed. The same seed gives the same result.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or mps; auto uses a GPU if there is one.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=0, max=256, help="Processes that read images. By default several with a GPU, none without."
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Work on a Ray cluster: auto, host:6379, ray://host:10001, or local for this machine.",
    ),
]
Data = Annotated[Path, typer.Option("--data", help="Data set: a file or folder of annotations or tags.")]
Preset = Annotated[str, typer.Option("--preset", help="Preset that the settings start from: default, demo or paper.")]
Download = Annotated[
    bool, typer.Option("--download", help="Allow the download of ImageNet weights that no package has.")
]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a setting, as KEY=VALUE. May be repeated.")]


def workers_of(count: int | None, device: str) -> int:
    """Default number of processes that read images: several with a GPU, which one cannot keep busy; none on a CPU."""
    from pairloc.platform import cores

    if count is not None:
        return count
    return 0 if device == "cpu" else max(0, min(_MAX_WORKERS, cores() - 2))


def settings_of(kind: "type[S]", values: Mapping[str, Any], changes: Sequence[str] = ()) -> "S":
    """Build settings from options and `--set KEY=VALUE` changes.

    Raises an InputError that names the option if a key is unknown or a value is invalid.
    """
    from pydantic import ValidationError

    from pairloc.io import first_problem
    from pairloc.presets import set_value

    content = dict(values)
    for change in changes:
        set_value(content, change)
    changed = {change.partition("=")[0].strip().split(".")[0] for change in changes}
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        key = str(error.errors()[0]["loc"][0]) if error.errors()[0]["loc"] else ""
        option = "--set" if key in changed or not key else "--" + key.replace("_", "-")
        problem = first_problem(error)
        raise InputError(f"{option}: {problem if option == '--set' else problem.partition(': ')[2].lower()}") from error


def refuse_other_file(out: Path, ours: bytes) -> None:
    """Raise an InputError if `out` exists and does not contain the bytes `ours`, which mark files of this command."""
    if out.is_dir():
        raise InputError(f"{out}: is a folder; name the file to write")
    if (out.parent / "seal.json").is_file():
        raise InputError(f"{out.parent}: is the folder of a run, which would no longer be intact; name another file")
    if out.is_file():
        with out.open("rb") as stream:
            head = stream.read(4096)
        if ours not in head:
            raise InputError(f"{out}: exists and is not what this command writes; name another file, or delete it")
