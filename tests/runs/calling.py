"""Calls of the command line in this process, and copies of a run that tests may damage."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from pairloc.errors import InputError

_LARGE = 1 << 20  # copies link files larger than this many bytes; no test writes them in place


class Answer(NamedTuple):
    """The exit status and the output of a command."""

    status: int
    text: str  # standard output, or the error message


def call(*arguments: object) -> Answer:
    """Call a command as `pairloc.cli.main` does; unexpected exceptions are raised."""
    from pairloc.cli import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, InputError):
        return Answer(2, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.output)


def refused(*arguments: object) -> str:
    """Call a command that must refuse its input, and return the error message."""
    status, text = call(*arguments)
    assert status == 2, text
    assert text.strip(), arguments
    assert "Traceback" not in text
    return text


def title(stage: str) -> str:
    """Return the name of a stage in the log of the tiny run."""
    from pairloc.runs.stages import TITLES

    return TITLES.get(stage, f"choosing a box for every tag ({stage})")


def copied(run: Path, to: Path) -> Path:
    """Copy a run."""
    return Path(shutil.copytree(run, to, copy_function=_copy))


def _copy(source: str, to: str) -> None:
    if Path(source).stat().st_size > _LARGE:
        os.link(source, to)
    else:
        shutil.copy2(source, to)


def flip(file: Path, position: int | None = None) -> None:
    """Flip one bit in the middle of a file, or at a byte position."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1
    file.write_bytes(content)
