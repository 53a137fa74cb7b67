"""Commands that evaluate results, write reports, and train and use detectors."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairloc.cli.options import (
    Changes,
    Device,
    Download,
    Format,
    Images,
    Preset,
    Seed,
    Workers,
    refuse_other_file,
    settings_of,
    workers_of,
)

if TYPE_CHECKING:
    from pairloc.datasets.dataset import Dataset
    from pairloc.datasets.groundtruth import GroundTruth
    from pairloc.datasets.scored import ScoredBoxes


def evaluate(
    boxes: Annotated[Path, typer.Argument(help="Boxes to measure: COCO JSON with scores, or COCO results.")],
    truth: Annotated[Path, typer.Option("--truth", help="Ground truth of the same images.")],
    iou: Annotated[
        list[float] | None, typer.Option("--iou", help="IoU threshold; 0.5 and 0.7 by default. May be repeated.")
    ] = None,
    at_least: Annotated[
        bool, typer.Option("--at-least", help="Count an IoU equal to the threshold as correct (>= instead of >).")
    ] = False,
    against: Annotated[
        Path | None, typer.Option("--against", help="Other boxes of the same images to compare with.")
    ] = None,
    format: Format = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure CorLoc of boxes: with confidence intervals, for every class, and by kind of error."""
    from pairloc.evaluation.table import evaluation_of
    from pairloc.evaluation.table import evaluation_text as text
    from pairloc.formats.reading import read_annotated

    evaluation: dict[str, Any] = evaluation_of(
        boxes, *read_annotated(truth, format), tuple(iou or (0.5, 0.7)), strict=not at_least, against=against
    )
    print(json.dumps(evaluation) if as_json else text(evaluation))


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of one or more runs on the same target.")
    ],
    out: Annotated[Path, typer.Option("--out", help="HTML file to write.")] = Path("report.html"),
    embed: Annotated[
        int,
        typer.Option(
            "--embed", min=0, help="Number of images stored inside the page; the others go to a folder next to it."
        ),
    ] = 300,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Also write figures for papers into this folder, as PNG, SVG and PDF."),
    ] = None,
) -> None:
    """Write a page with the table of results, the curves, and every image with the boxes of all methods."""
    from pairloc.io import refuse_links, refuse_other_work
    from pairloc.report.gathering import write_report
    from pairloc.runs.run import open_run
    from pairloc.runs.runner import require_done

    refuse_other_file(out, b"<title>pairloc report</title>")
    opened = [open_run(folder) for folder in runs]
    for run in opened:
        require_done(run, set(run.stages) - {"report"})
    files = out.with_name(f"{out.stem}_files")
    if not out.is_file():
        refuse_other_work(files, lambda folder: False)
    if files.is_dir():
        refuse_links(files)
    count = write_report(opened, out, embed=embed, figures=figures)
    print(f"wrote {out}: {count} images")


HoldOut = Annotated[
    int,
    typer.Option(
        "--hold-out", min=0, help="Hold out one image in N: train on the others, evaluate on these; 0 disables it."
    ),
]

detect_app = typer.Typer(help="Train and use a detector on the boxes found.", no_args_is_help=True)


@detect_app.command("train")
def detect_train(
    out: Annotated[Path, typer.Option("--out", help="Folder to write. An interrupted training resumes in it.")],
    boxes: Annotated[
        Path | None, typer.Option("--boxes", help="Boxes found before, such as boxes.json of a run.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option("--truth", help="Train on ground truth instead, as an upper bound.")
    ] = None,
    images: Images = None,
    start: Annotated[
        str | None,
        typer.Option("--start", help="Weights to start from: coco63, a run, or the folder of a proposer."),
    ] = None,
    preset: Preset = "default",
    changes: Changes = None,
    download: Download = False,
    hold_out: HoldOut = 0,
    workers: Workers = None,
    device: Device = "auto",
    seed: Seed = 0,
) -> None:
    """Train a Faster R-CNN on boxes found before, or on ground truth. Change its settings with `--set lr=0.001`.

    The boxes found mark one object of each tag, and other regions may show
    another. Therefore a region counts as background only if its IoU with a
    box is at least 0.1; change this with `--set min_background_iou=`.
    """
    from pairloc.detector.backbones import check_pretrained
    from pairloc.detector.detect import held_out_mask, train_detector
    from pairloc.detector.model import Proposer
    from pairloc.detector.training import claim_training
    from pairloc.errors import InputError
    from pairloc.formats.reading import read_annotated, read_boxes
    from pairloc.platform import choose_device
    from pairloc.presets import preset as read_preset
    from pairloc.progress import track
    from pairloc.settings import ProposerSettings
    from pairloc.weights import PACKAGED, weights_folder

    if (boxes is None) == (truth is None):
        raise InputError("give either --boxes or --truth")
    chosen = choose_device(device)
    values: dict[str, Any] = {"warm_up": 50} | read_preset(preset).get("proposer", {})
    values |= {
        "epochs": 12, "seed": seed, "held_out": 0.0, "workers": workers_of(workers, chosen),
        "min_background_iou": 0.1 if boxes is not None else 0.0, "download": download,
    }  # fmt: skip
    settings = settings_of(ProposerSettings, values, changes or ())
    if start is None:
        check_pretrained(settings)
    claim_training(out)
    dataset: Dataset
    train_boxes: ScoredBoxes | GroundTruth
    if boxes is not None:
        dataset, train_boxes = read_boxes(boxes, images=images)
    else:
        assert truth is not None
        dataset, train_boxes = read_annotated(truth, images=images)
    initial = None
    if start is not None:
        has_proposer = start == PACKAGED or (Path(start) / "proposer").is_dir()  # else it is a proposer itself
        initial = Proposer.load(weights_folder(start) / "proposer" if has_proposer else Path(start))
        architecture = ("backbone", "pyramid", "levels", "anchor", "roi", "head", "image_size")
        settings = settings.model_copy(update={name: getattr(initial.settings, name) for name in architecture})
    if hold_out:
        train_boxes = train_boxes.where(~held_out_mask(dataset, hold_out)[train_boxes.image])
    steps = partial(track, what="training steps")
    train_detector(dataset, train_boxes, settings, out, start=initial, device=chosen, log=print, track=steps)
    print(f"wrote {out}")


@detect_app.command("evaluate")
def detect_evaluate(
    detector: Annotated[Path, typer.Argument(help="Folder of a trained detector.")],
    truth: Annotated[Path, typer.Option("--truth", help="Ground truth of the images to evaluate on.")],
    images: Images = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write the detections to this file, as COCO results.")
    ] = None,
    hold_out: HoldOut = 0,
    workers: Workers = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure the average precision of a detector, as COCO defines it, and mAP@0.5."""
    from dataclasses import asdict

    import numpy as np

    from pairloc.boxes import to_xywh
    from pairloc.detector.detect import detect, held_out_mask, relabelled
    from pairloc.detector.model import Proposer
    from pairloc.evaluation.average_precision import average_precision
    from pairloc.formats.reading import read_annotated
    from pairloc.io import write_json
    from pairloc.platform import choose_device

    if out is not None:
        refuse_other_file(out, b'[{"image_id":')
    dataset, true = read_annotated(truth, images=images)
    if hold_out:
        kept = np.nonzero(held_out_mask(dataset, hold_out))[0]
        new_index = np.full(len(dataset), -1)
        new_index[kept] = np.arange(len(kept))
        dataset, true = dataset.subset(kept.tolist()), true.relabelled(new_index, np.arange(len(dataset.classes)))
    chosen = choose_device(device)
    model = Proposer.load(detector, chosen)
    detections = relabelled(
        detect(model, dataset, device=chosen, workers=workers_of(workers, chosen)), model.classes, dataset
    )
    if out is not None:
        rows = zip(
            detections.image,
            detections.label,
            to_xywh(detections.boxes).round(2).tolist(),
            detections.score,
            strict=True,
        )
        results = [
            {"image_id": dataset.images[i].id, "category_id": dataset.class_ids[c], "bbox": b, "score": float(s)}
            for i, c, b, s in rows
        ]
        write_json(out, results)
    result = average_precision(dataset, true, detections)
    if as_json:
        print(json.dumps(asdict(result)))
        return
    print(f"AP {100 * result.ap:.1f}, mAP@0.5 {100 * result.ap50:.1f}, AP@0.75 {100 * result.ap75:.1f}")
    for name, value in result.per_class50.items():
        print(f"  {name[:24]:24} {100 * value:5.1f}")


@detect_app.command("run")
def detect_run(
    detector: Annotated[Path, typer.Argument(help="Folder of a trained detector.")],
    images: Annotated[Path, typer.Argument(help="Folder of images of any size. They need no tags.")],
    out: Annotated[Path, typer.Option("--out", help="File to write: COCO JSON with scores.")],
    least: Annotated[float, typer.Option("--min-score", min=0, max=1, help="Minimum score of a box.")] = 0.5,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Detect every object in a folder of images."""
    from pairloc.detector.detect import detect_below
    from pairloc.detector.model import Proposer
    from pairloc.formats.coco import write_boxes
    from pairloc.platform import choose_device
    from pairloc.progress import track

    refuse_other_file(out, b"boxes found by pairloc")
    chosen = choose_device(device)
    dataset, found = detect_below(
        Proposer.load(detector, chosen), images, print, track=partial(track, what="images", size=len), device=chosen,
        workers=workers_of(workers, chosen), least=least,
    )  # fmt: skip
    write_boxes(out, dataset, found)
    print(f"wrote {out}: {len(found)} boxes in {len(set(found.image.tolist()))} of {len(dataset)} images")
