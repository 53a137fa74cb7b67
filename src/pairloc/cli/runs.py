"""Verbs that run the method."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairloc.cli.options import Device, Seed, device_of

if TYPE_CHECKING:
    from pairloc.pipeline import Run


def run(
    config: Annotated[Path, typer.Argument(help="The settings, a TOML file such as those in configs/.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The run's folder; a run goes on in it. Else runs/ and the file's name."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Another value of a setting, such as learning.alpha=0.5.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    device: Device = "auto",
) -> None:
    """Run the whole method: proposer, bags, transfer scores, warm-up, alternation, evaluation. Goes on where it stopped."""
    from pairloc.pipeline import Run, read_config

    settings = read_config(config, changes or ())
    chosen = device_of(device if device != "auto" else settings.device)
    _show(Run(out or Path("runs") / config.stem, settings, chosen), dry_run=dry_run)


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")] = Path("demo"),
    seed: Seed = 0,
    fast: Annotated[bool, typer.Option("--fast", help="Less of everything, in under 90 seconds.")] = False,
    device: Device = "auto",
) -> None:
    """Run the whole method on generated scenes, from nothing to the table."""
    from pairloc.pipeline import Run, demo_settings

    start = time.perf_counter()
    _show(Run(out, demo_settings(seed, fast=fast), device_of(device)), dry_run=False)
    print(f"{time.perf_counter() - start:.0f} s in all")


def _show(whole: "Run", *, dry_run: bool) -> None:
    from pairloc.evaluation.table import as_text

    print(f"run in {whole.folder}:")
    for name, state in whole.plan():
        print(f"  {name:14} {state}")
    if dry_run:
        return
    evaluation = whole.run()
    print()
    print(as_text(evaluation))
    for method in evaluation["seconds"]:
        print(f"boxes: {whole.folder / method / 'boxes.json'}")
