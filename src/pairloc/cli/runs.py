"""Verbs that run the method."""

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairloc.cli.options import Changes, Device, Format, Seed, Workers, refuse_other_file, workers_of

if TYPE_CHECKING:
    from pairloc.runs.run import Run

Finished = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]


def run(
    config: Annotated[Path, typer.Argument(help="The settings, a TOML file such as those in configs/.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The run's folder; runs/NAME unless given. A run goes on in it."),
    ] = None,
    changes: Changes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    device: Device = "auto",
) -> None:
    """Run the whole method, from the proposer to the report; goes on where it stopped."""
    from pairloc.platform import choose_device
    from pairloc.presets import read_config
    from pairloc.runs.run import Run

    settings = read_config(config, changes or ())
    chosen = choose_device(device if device != "auto" else settings.device)
    _show(Run(out or Path("runs") / config.stem, settings, chosen), dry_run=dry_run)


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")] = Path("demo"),
    seed: Seed = 0,
    fast: Annotated[bool, typer.Option("--fast", help="Less of everything, in under 90 seconds.")] = False,
    device: Device = "auto",
) -> None:
    """Run the whole method on generated scenes, from nothing to the table."""
    from pairloc.platform import choose_device
    from pairloc.presets import demo_settings
    from pairloc.runs.run import Run

    start = time.perf_counter()
    _show(Run(out, demo_settings(seed, fast=fast), choose_device(device)), dry_run=False)
    print(f"{time.perf_counter() - start:.0f} s in all")


def localize(
    images: Annotated[Path, typer.Argument(help="The folder the images lie in.")],
    tags: Annotated[Path, typer.Option("--tags", help="What is in which image: CSV, COCO, a folder per class, ...")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write; a run that was stopped goes on in it.")],
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=0, help="Rounds of re-training on the boxes found; 0 is none.")
    ] = None,
    fine_tune: Annotated[
        bool,
        typer.Option("--fine-tune", help="Then re-train the proposer on the boxes found: better boxes, for a GPU."),
    ] = False,
    weights: Annotated[
        str, typer.Option("--weights", help="What was learned before: packaged weights, or the folder of a run.")
    ] = "coco63",
    format: Format = "auto",
    workers: Workers = None,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Processes that share the learning.")] = 1,
    device: Device = "auto",
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, max=2**62 - 1, help="Unless given, that of the weights.")
    ] = None,
) -> None:
    """Tags in, boxes out: find what is tagged with the weights in the package, nothing to train first."""
    from pairloc.platform import choose_device
    from pairloc.runs.localize import localize as find
    from pairloc.runs.localize import localize_settings

    start, chosen = time.perf_counter(), choose_device(device)
    settings = localize_settings(
        images, tags, weights=weights, rounds=rounds, fine_tune=fine_tune, format=format, device=chosen,
        workers=workers_of(workers, chosen), processes=processes, seed=seed,
    )  # fmt: skip
    found = find(settings, out, chosen)
    print(f"{len(found.target)} images in {time.perf_counter() - start:.0f} s")
    print(f"boxes: {out / 'boxes.json'}")
    if fine_tune:
        print(f"all instances of a tag: {out / 'instances.json'}")
    print(f"report: {out / 'report.html'}")


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
    print(f"boxes: {whole.folder / 'boxes.json'}, of each method in METHOD/boxes.json")
    print(f"report: {whole.folder / 'report.html'}")


def verify(folder: Finished) -> None:
    """Find files of a run that are not what was written, down to a byte; exit status 1 if there are any."""
    from pairloc.runs.sealing import broken

    lines = broken(folder)
    for line in lines:
        print(line)
    if lines:
        raise typer.Exit(1)
    print(f"{folder}: every file is what was written")


def clean(folder: Finished, yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False) -> None:
    """Remove what a run keeps aside: results of other settings, and damaged ones."""
    from pairloc.errors import InputError
    from pairloc.runs.runner import ASIDE, set_aside_size

    if (folder / ASIDE).is_symlink():
        raise InputError(f"{folder / ASIDE}: is a symbolic link; remove it yourself")
    names, size = set_aside_size(folder)
    if not names:
        print(f"{folder}: nothing is kept aside")
        return
    for name in names:
        print(f"  {name}")
    print(f"{len(names)} results are kept aside in {folder / ASIDE}, {size / 1e6:.1f} MB")
    if yes or typer.confirm("Remove them?"):
        shutil.rmtree(folder / ASIDE)
        print("removed")


study_app = typer.Typer(help="The paper's experiments on a finished run.", no_args_is_help=True)


@study_app.command("init")
def study_init(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run whose truth is known.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write init.csv and init.png into.")],
    images: Annotated[
        int | None, typer.Option("--images", min=2, help="So many images of the target, drawn at random; else all.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Where ICM ends by where it starts: random, objectness, whole image, mini-problems of 2, 4, 8 and 64 bags."""
    from pairloc.experiments.initialisation import study_init, write_study
    from pairloc.io import claim_folder
    from pairloc.platform import choose_device, learning_device
    from pairloc.runs.run import open_run
    from pairloc.runs.runner import require_done

    whole = open_run(folder, choose_device(device))
    require_done(whole, {"bags", "transfer", "calibration"})
    claim_folder(out, "init.csv")
    indices, dataset, truth = whole.sample(images)
    points = study_init(
        whole.target_bags, dataset, truth, whole.learned, whole.settings.localization, indices=indices,
        device=learning_device(whole.device), memory=whole.memory, log=print,
    )  # fmt: skip
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

    from pairloc.experiments.tuning import PlayingTarget, draw_classes
    from pairloc.experiments.tuning import tune as search
    from pairloc.io import write_json
    from pairloc.platform import choose_device
    from pairloc.runs.run import open_run
    from pairloc.runs.runner import require_done

    refuse_other_file(out, b'"made_by": "pairloc tune"')
    chosen = choose_device(device)
    whole = open_run(folder, chosen)
    require_done(whole, {"bags"})
    store = whole.source_bags
    drawn = [draw_classes(store.dataset, classes, seed) for seed in range(draws)]
    targets = [PlayingTarget(store, whole.source, draw, chosen) for draw in drawn]
    transfer, localization, tried = search(targets, whole.settings.transfer, whole.settings.localization, log=print)
    content = {
        "made_by": "pairloc tune",
        "transfer": transfer.model_dump(),
        "localization": localization.model_dump(),
        "tried": [asdict(entry) for entry in tried],
    }
    write_json(out, content, indent=1)
    print(f"wrote {out}")
