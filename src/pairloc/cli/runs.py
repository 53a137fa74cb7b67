"""Commands that run the method."""

import shutil
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairloc.cli.options import (
    Changes,
    Cluster,
    Device,
    Download,
    Format,
    Seed,
    Workers,
    refuse_other_file,
    workers_of,
)

if TYPE_CHECKING:
    from pairloc.runs.run import Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


def run(
    config: Annotated[Path, typer.Argument(help="TOML file with the settings; configs/ has examples.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of the run; runs/NAME by default. An interrupted run resumes."),
    ] = None,
    changes: Changes = None,
    download: Download = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print which stages would run, and exit.")] = False,
    cluster: Cluster = None,
    device: Device = "auto",
) -> None:
    """Run the whole method as a settings file describes it, from training to the report.

    A run that was interrupted resumes; only stages whose settings or inputs changed are run again.
    """
    from pairloc.platform import choose_device
    from pairloc.presets import read_config
    from pairloc.runs.run import Run
    from pairloc.weights import extract_of

    allowed = ("proposer.download=true", "extract.download=true") if download else ()
    address = () if cluster is None else (f"cluster={cluster}",)
    settings = read_config(config, (*(changes or ()), *allowed, *address), extract_of=extract_of)
    chosen = choose_device(device if device != "auto" else settings.device)
    _run_and_print(Run(out or Path("runs") / config.stem, settings, chosen), dry_run=dry_run)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder to write.")] = Path("demo"),
    seed: Seed = 0,
    fast: Annotated[bool, typer.Option("--fast", help="Use fewer images and finish in under 90 seconds.")] = False,
    device: Device = "auto",
) -> None:
    """Try the whole method on generated images: training, boxes, a table of results and a report page."""
    from pairloc.platform import choose_device
    from pairloc.presets import demo_settings
    from pairloc.runs.run import Run

    start = time.perf_counter()
    _run_and_print(Run(out, demo_settings(seed, fast=fast), choose_device(device)), dry_run=False)
    print(f"{time.perf_counter() - start:.0f} s in all")


def localize(
    images: Annotated[Path, typer.Argument(help="Folder that holds the images.")],
    tags: Annotated[
        Path, typer.Option("--tags", help="Tags of the images: a CSV file, COCO JSON, a folder per tag, ...")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to write. An interrupted run resumes in it.")],
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=0, help="How often to learn from the boxes found and choose again; 0 is fastest."),
    ] = None,
    fine_tune: Annotated[
        bool,
        typer.Option(
            "--fine-tune", help="Also re-train the network on the boxes found: better boxes, slow without a GPU."
        ),
    ] = False,
    snap: Annotated[
        bool,
        typer.Option(
            "--snap",
            help="Move the boxes to the edges of what they show, by a segmenter that you install: tighter boxes.",
        ),
    ] = False,
    segmenter: Annotated[
        Path | None,
        typer.Option("--segmenter", help="File of the segmenter's weights, if they are not installed; implies --snap."),
    ] = None,
    masks: Annotated[
        bool, typer.Option("--masks", help="Also write the masks of the boxes to masks.json; implies --snap.")
    ] = False,
    min_confidence: Annotated[
        float,
        typer.Option(
            "--min-confidence", min=0, max=1, help="Leave out boxes of lower confidence and list them in a table."
        ),
    ] = 0.0,
    tags_as_new: Annotated[
        bool,
        typer.Option("--tags-as-new", help="Treat tags that the weights know by name, such as person, as new to them."),
    ] = False,
    weights: Annotated[
        str, typer.Option("--weights", help="Weights to use: those of the package, or the folder of a run.")
    ] = "coco63",
    format: Format = "auto",
    workers: Workers = None,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Processes that work in parallel.")] = 1,
    cluster: Cluster = None,
    device: Device = "auto",
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, max=2**62 - 1, help="Random seed; by default the one stored with the weights."),
    ] = None,
) -> None:
    """Find a box for every tag of your images.

    Nothing has to be trained first: the weights in the package are used.
    The output folder gets boxes.json, with a confidence for every box, and
    report.html, a page that shows the boxes.
    """
    from pairloc.platform import choose_device
    from pairloc.runs.localize import localize as run_localize
    from pairloc.runs.localize import localize_settings

    start, chosen = time.perf_counter(), choose_device(device)
    settings = localize_settings(
        images, tags, weights=weights, rounds=rounds, fine_tune=fine_tune, snap=snap, segmenter=segmenter, masks=masks,
        tags_as_new=tags_as_new, format=format, device=chosen, workers=workers_of(workers, chosen), processes=processes,
        cluster=cluster, seed=seed, min_confidence=min_confidence,
    )  # fmt: skip
    finished = run_localize(settings, out, chosen)
    print(f"{len(finished.target)} images in {time.perf_counter() - start:.0f} s")
    print(f"boxes: {out / 'boxes.json'}")
    if fine_tune:
        print(f"further boxes of every tag: {out / 'instances.json'}")
    if masks:
        print(f"masks: {out / 'masks.json'}")
    print(f"report: {out / 'report.html'}")
    _print_left_out(finished)


def _print_left_out(run: "Run") -> None:
    from pairloc.runs.results import LOW_CONFIDENCE, left_out

    low, count = left_out(run)
    if low:
        least = f"{run.settings.min_confidence:g}"
        print(f"left out: {low} of {count} boxes, of confidence below {least}, listed in {run.folder / LOW_CONFIDENCE}")


def _run_and_print(run: "Run", *, dry_run: bool) -> None:
    from pairloc.evaluation.table import as_text

    print(f"run in {run.folder}:")
    for name, state in run.plan():
        print(f"  {name:14} {state}")
    if dry_run:
        return
    evaluation = run.run()
    print()
    print(as_text(evaluation))
    print(f"boxes: {run.folder / 'boxes.json'}; those of each method: METHOD/boxes.json")
    print(f"report: {run.folder / 'report.html'}")
    _print_left_out(run)


def status(folder: RunFolder) -> None:
    """Say what a run has done so far, from any terminal, and whether a process works on it."""
    from pairloc.runs.status import status as status_of

    for line in status_of(folder):
        print(line)


def verify(folder: RunFolder) -> None:
    """Check that no file of a run has changed since it was written. The exit status is 1 if one has."""
    from pairloc.runs.sealing import broken

    lines = broken(folder)
    for line in lines:
        print(line)
    if lines:
        raise typer.Exit(1)
    print(f"{folder}: no file has changed since it was written")


def clean(
    folder: RunFolder, yes: Annotated[bool, typer.Option("--yes", help="Do not ask before removing.")] = False
) -> None:
    """Remove the results that a run keeps aside: those of earlier settings, and damaged ones."""
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


study_app = typer.Typer(help="Repeat the paper's experiments on a finished run.", no_args_is_help=True)


@study_app.command("init")
def study_init(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run with ground truth.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write init.csv and init.png into.")],
    images: Annotated[
        int | None, typer.Option("--images", min=2, help="Number of target images to sample; all by default.")
    ] = None,
    full_graph: Annotated[
        int,
        typer.Option(
            "--full-graph",
            min=0,
            help="Also run block ICM and mean field, for classes of at most this many images; 0 skips this.",
        ),
    ] = 0,
    device: Device = "auto",
) -> None:
    """Compare initialisations of ICM: random, objectness, whole image, and mini-problems of 2, 4, 8 and 64 bags."""
    from pairloc.experiments.initialisation import InitialisationStudy, write_points, write_study
    from pairloc.io import claim_folder
    from pairloc.platform import choose_device, learning_device
    from pairloc.runs.run import open_run
    from pairloc.runs.runner import require_done

    run = open_run(folder, choose_device(device))
    require_done(run, {"bags", "transfer", "calibration"})
    claim_folder(out, "init.csv")
    indices, dataset, truth = run.sample(images)
    study = InitialisationStudy(
        run.target_bags, dataset, truth, run.learned, run.settings.localization, indices=indices,
        device=learning_device(run.device), memory=run.memory, log=print,
    )  # fmt: skip
    write_study(study.starts(), out)
    if full_graph:
        write_points(study.full_graph(full_graph), out / "full-graph.csv")
    print(f"wrote {out}")


class TableFormat(StrEnum):
    """How the table is printed."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    json = "json"


@study_app.command("table")
def study_table(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run with ground truth.")],
    form: Annotated[TableFormat, typer.Option("--as", help="How to print the table.")] = TableFormat.text,
    detections: Annotated[
        list[str] | None,
        typer.Option(
            "--detections",
            help="METHOD=FILE: what `detect evaluate --out` wrote for a detector trained on the boxes of a method, or "
            "supervised=FILE. May be repeated.",
        ),
    ] = None,
    test: Annotated[Path | None, typer.Option("--test", help="Ground truth of the detections.")] = None,
) -> None:
    """Print the paper's main table: CorLoc of every method, times, and mAP@0.5 of detectors trained on the boxes.

    Training is the time of re-training on the target, inference that of selecting boxes; learning on the source counts
    in neither.
    """
    import json

    from pairloc.errors import InputError
    from pairloc.evaluation.average_precision import average_precision
    from pairloc.evaluation.table import read_found
    from pairloc.experiments.paper_table import as_json, as_latex, as_markdown, as_text, paper_table
    from pairloc.formats.reading import read_annotated
    from pairloc.runs.run import open_run
    from pairloc.runs.runner import require_done

    run = open_run(folder)
    require_done(run, {"evaluation"})
    if detections and test is None:
        raise InputError("--detections needs --test, the ground truth of the images that were detected in")
    map50 = {}
    if detections and test is not None:
        dataset, truth = read_annotated(test)
        for entry in detections:
            method, separator, file = entry.partition("=")
            if not separator or not Path(file).is_file():
                raise InputError(f"--detections: {entry!r} is not METHOD=FILE with a file that exists")
            map50[method] = average_precision(dataset, truth, read_found(Path(file), dataset).boxes).ap50
    rows = paper_table(run.folder, run.evaluation, map50)
    if form is TableFormat.json:
        print(json.dumps(as_json(rows), indent=1))
    else:
        formats = {TableFormat.text: as_text, TableFormat.markdown: as_markdown, TableFormat.latex: as_latex}
        print(formats[form](rows))


def tune(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that extracted bags of its source.")],
    out: Annotated[Path, typer.Option("--out", help="JSON file to write: the settings tried and chosen.")],
    classes: Annotated[int, typer.Option("--classes", min=2, help="Number of source classes used as a target.")] = 15,
    draws: Annotated[int, typer.Option("--draws", min=1, help="Number of random draws of these classes.")] = 3,
    device: Device = "auto",
) -> None:
    """Choose settings on the source: some of its classes serve as the target. The real target is not used."""
    from dataclasses import asdict

    from pairloc.experiments.tuning import PlayingTarget, draw_classes
    from pairloc.experiments.tuning import tune as search
    from pairloc.io import write_json
    from pairloc.localization.combination import Combination
    from pairloc.localization.learned import EVIDENCE
    from pairloc.platform import choose_device
    from pairloc.runs.run import open_run
    from pairloc.runs.runner import require_done

    refuse_other_file(out, b'"made_by": "pairloc tune"')
    chosen = choose_device(device)
    run = open_run(folder, chosen)
    require_done(run, {"bags"})
    store = run.source_bags
    drawn = [draw_classes(store.dataset, classes, seed) for seed in range(draws)]
    combination = Combination.load(run.folder / EVIDENCE) if dict(run.plan()).get(EVIDENCE) == "done" else None
    if combination is None and run.settings.localization.unary.combination == "learned":
        print("this run has not learned how much evidence counts, so all values are compared with mixed scores")
    targets = [PlayingTarget(store, run.source, draw, chosen, combination) for draw in drawn]
    transfer, localization, tried = search(targets, run.settings.transfer, run.settings.localization, log=print)
    content = {
        "made_by": "pairloc tune",
        "transfer": transfer.model_dump(),
        "localization": localization.model_dump(),
        "tried": [asdict(entry) for entry in tried],
    }
    write_json(out, content, indent=1)
    print(f"wrote {out}")
