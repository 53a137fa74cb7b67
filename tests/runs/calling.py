"""The command line in this process, and copies of a run to do harm to."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from pairloc.errors import InputError

_LARGE = 1 << 20  # bytes from which a copy shares the file, which nobody writes in place


class Answer(NamedTuple):
    """What a command said, and how it ended."""

    status: int
    text: str  # standard output; the sentence where the input was refused


def call(*arguments: object) -> Answer:
    """Call a verb as `pairloc.cli.main` does; whatever would be a traceback is raised."""
    from pairloc.cli import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, InputError):
        return Answer(2, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.output)


def refused(*arguments: object) -> str:
    """The one sentence of a command that refuses its input."""
    status, text = call(*arguments)
    assert status == 2, text
    assert text.strip(), arguments
    assert "Traceback" not in text
    return text


def title(stage: str) -> str:
    """What the log of the tiny run calls a stage."""
    from pairloc.runs.stages import TITLES

    return TITLES.get(stage, f"choosing a box for every tag ({stage})")


def copied(run: Path, to: Path) -> Path:
    """A run of the same files."""
    return Path(shutil.copytree(run, to, copy_function=_copy))


def _copy(source: str, to: str) -> None:
    if Path(source).stat().st_size > _LARGE:
        os.link(source, to)
    else:
        shutil.copy2(source, to)


def flip(file: Path, place: int | None = None) -> None:
    """Change one bit in the middle of a file, or at a place."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    file.write_bytes(content)
