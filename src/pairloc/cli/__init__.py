"""The command line. Heavy modules are imported only when a command needs them."""

import io
import os
import signal
import sys
from typing import Annotated

import typer

from pairloc import __version__
from pairloc.cli import bags, data, outcome, runs, weights
from pairloc.errors import InputError

_INTERRUPTED = 130
app = typer.Typer(
    help="Find a box for every tag of your images. Begin with `pairloc localize`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
verbs = (
    runs.localize, runs.run, runs.status, runs.verify, runs.clean, runs.demo, runs.tune, outcome.evaluate,
    outcome.report, data.doctor, data.scenes, data.export,
)  # fmt: skip
for verb in verbs:
    app.command()(verb)
app.add_typer(data.split_app, name="split")
app.add_typer(bags.propose_app, name="propose")
app.add_typer(bags.bags_app, name="bags")
app.add_typer(runs.study_app, name="study")
app.add_typer(outcome.detect_app, name="detect")
app.add_typer(weights.weights_app, name="weights")


def main() -> None:
    """Run the command line; bad input prints one sentence and ends with exit status 2."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that partial files are removed
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except InputError as error:
        _fail(str(error))
    except BrokenPipeError:  # the program that reads our output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        from pairloc.io import reason

        _fail(f"{error.filename or 'input or output'}: {reason(error)}")
    except KeyboardInterrupt:
        _fail("interrupted", status=_INTERRUPTED)
    except SystemExit as end:  # typer converts a KeyboardInterrupt to this without a message
        if end.code == _INTERRUPTED:
            _fail("interrupted", status=_INTERRUPTED)
        raise


def _fail(message: str, status: int = 2) -> None:
    print(f"pairloc: {message}", file=sys.stderr)
    sys.exit(status)


def _version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import version
    from platform import python_version

    from pairloc.platform import choose_device
    from pairloc.weights.catalogue import packaged

    print(f"pairloc {__version__}")
    print(f"Python {python_version()}, torch {version('torch')}, torchvision {version('torchvision')}")
    print(f"device {choose_device('auto')}, weights {', '.join(packaged())}")
    raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the versions, the device and the weights, and exit.",
        ),
    ] = False,
) -> None:
    pass
