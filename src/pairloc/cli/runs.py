"""Verbs that run the method."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairloc.cli.options import Device, Format, Seed, Workers, device_of, workers_of
from pairloc.weights import PACKAGED

if TYPE_CHECKING:
    from pairloc.runs.run import Run


def run(
    config: Annotated[Path, typer.Argument(help="The settings, a TOML file such as those in configs/.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The run's folder; runs/NAME unless given. A run goes on in it."),
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Another value of a setting, such as learning.alpha=0.5.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    device: Device = "auto",
) -> None:
    """Run the whole method, from the proposer to the evaluation; goes on where it stopped."""
    from pairloc.presets import read_config
    from pairloc.runs.run import Run
    from pairloc.sharing import Share

    settings = read_config(config, changes or ())
    chosen = device_of(device if device != "auto" else settings.device)
    share = Share.of_torchrun(chosen)
    _show(Run(out or Path("runs") / config.stem, settings, chosen, share=share), dry_run=dry_run)


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")] = Path("demo"),
    seed: Seed = 0,
    fast: Annotated[bool, typer.Option("--fast", help="Less of everything, in under 90 seconds.")] = False,
    device: Device = "auto",
) -> None:
    """Run the whole method on generated scenes, from nothing to the table."""
    from pairloc.presets import demo_settings
    from pairloc.runs.run import Run

    start = time.perf_counter()
    _show(Run(out, demo_settings(seed, fast=fast), device_of(device)), dry_run=False)
    print(f"{time.perf_counter() - start:.0f} s in all")


def localize(
    images: Annotated[Path, typer.Argument(help="The folder the pictures lie in.")],
    tags: Annotated[Path, typer.Option("--tags", help="What is in which picture: CSV, COCO, a folder per class, ...")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write; a run that was stopped goes on in it.")],
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=0, help="Rounds of re-training on the boxes found; 0 is none.")
    ] = None,
    fine_tune: Annotated[
        bool,
        typer.Option("--fine-tune", help="Then re-train the proposer on the boxes found: better boxes, for a GPU."),
    ] = False,
    weights: Annotated[
        str, typer.Option("--weights", help="What was learned before: packaged, or the folder of a run.")
    ] = PACKAGED,
    format: Format = "auto",
    workers: Workers = None,
    device: Device = "auto",
    seed: Seed = 0,
) -> None:
    """Tags in, boxes out: find what is tagged with the weights in the package, nothing to train first."""
    from pairloc.runs.localize import localize as find

    start, chosen = time.perf_counter(), device_of(device)
    found = find(
        images, tags, out, weights=weights, rounds=rounds, fine_tune=fine_tune, format=format,
        device=chosen, workers=workers_of(workers, chosen), seed=seed,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    print(f"{len(found.target)} pictures in {seconds:.0f} s")
    print(f"boxes: {out / 'boxes.json'}")
    if fine_tune:
        print(f"all instances of a tag: {out / 'instances.json'}")
    print(f"report: {out / 'report.html'}")


def _show(whole: "Run", *, dry_run: bool) -> None:
    from pairloc.evaluation.table import as_text

    if not whole.share.leads:
        whole.run()
        return
    print(f"run in {whole.folder}:")
    for name, state in whole.plan():
        print(f"  {name:14} {state}")
    if dry_run:
        return
    evaluation = whole.run()
    print()
    print(as_text(evaluation))
    from pairloc.runs.reporting import write_report
    from pairloc.runs.sealing import seal

    write_report([whole], whole.folder / "report.html")
    seal(whole.folder)
    print(f"boxes of a method: {whole.folder / 'METHOD' / 'boxes.json'}")
    print(f"report: {whole.folder / 'report.html'}")


def verify(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
) -> None:
    """Find files of a run that are not what was written, down to a byte; exit status 1 if there are any."""
    from pairloc.runs.sealing import broken

    lines = broken(folder)
    for line in lines:
        print(line)
    if lines:
        raise typer.Exit(1)
    print(f"{folder}: every file is what was written")


study_app = typer.Typer(help="The paper's experiments on a finished run.", no_args_is_help=True)


@study_app.command("init")
def study_init(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run whose truth is known.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write init.csv and init.png into.")],
    pictures: Annotated[
        int | None, typer.Option("--pictures", min=2, help="So many pictures of the target, drawn at random; else all.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Where ICM ends by where it starts: random, objectness, whole image, mini-problems of 2, 4, 8 and 64 bags."""
    from pairloc.experiments.initialisation import study_init, write_study
    from pairloc.runs.run import Run, open_run

    whole: Run = open_run(folder, device_of(device))
    target, truth = whole.some_target(pictures)
    points = study_init(target, whole.transfer_scores, whole.settings.learning, truth, say=print)
    write_study(points, out)
    print(f"wrote {out}")


def tune(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run with bags of its source.")],
    out: Annotated[Path, typer.Option("--out", help="The file to write what was tried and chosen into (JSON).")],
    classes: Annotated[int, typer.Option("--classes", min=2, help="Source classes that play the target.")] = 15,
    draws: Annotated[int, typer.Option("--draws", min=1, help="How often they are drawn.")] = 3,
    device: Device = "auto",
) -> None:
    """Choose settings on source classes that play the target; the target's truth is not looked at."""
    from dataclasses import asdict

    from pairloc.bags.store import BagStore
    from pairloc.experiments.tuning import Game, draw_classes
    from pairloc.experiments.tuning import tune as search
    from pairloc.io import write_json
    from pairloc.runs.run import open_run

    chosen = device_of(device)
    out.parent.mkdir(parents=True, exist_ok=True)
    whole = open_run(folder, chosen)
    store = BagStore(folder / "bags" / "source")
    games = [Game(store, whole.source, draw_classes(store.dataset, classes, seed), chosen) for seed in range(draws)]
    transfer, learning, tried = search(games, whole.settings.transfer, whole.settings.learning, say=print)
    content = {
        "transfer": transfer.model_dump(),
        "learning": learning.model_dump(),
        "tried": [asdict(t) for t in tried],
    }
    write_json(out, content, indent=1)
    print(f"wrote {out}")
