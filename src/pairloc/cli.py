"""One verb per job. Nothing heavy is imported before a verb needs it."""

import io
import json
import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pairloc import __version__
from pairloc.errors import InputError

if TYPE_CHECKING:
    from pairloc.config import Settings
    from pairloc.data.doctor import Report
    from pairloc.data.splits import Split

S = TypeVar("S", bound="Settings")

app = typer.Typer(
    help="Tagged photographs in, boxes out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
split_app = typer.Typer(help="Cut an annotated data set into source and target.", no_args_is_help=True)
app.add_typer(split_app, name="split")


class Mixed(StrEnum):
    """Where images with source and target classes go."""

    source = "source"
    target = "target"
    both = "both"


class Unreadable(StrEnum):
    """What a picture that cannot be read does."""

    fail = "fail"
    skip = "skip"


Format = Annotated[str, typer.Option("--format", help="The format, where it is not recognised by itself.")]
Images = Annotated[Path | None, typer.Option("--images", help="The folder the pictures lie in.")]
Out = Annotated[
    Path, typer.Option("--out", help="The folder to write; it must be new, empty, or from the same command.")
]
FirstFile = Annotated[Path, typer.Option("--annotations", help="An annotated data set (for coco17: train2017).")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same result.")]


def main() -> None:
    """Run the command line; bad input is one sentence and exit status 2."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half-written is cleaned away
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except InputError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        from pairloc.files import reason

        _fail(f"{error.filename or 'input or output'}: {reason(error)}")
    except KeyboardInterrupt:
        _fail("interrupted", status=130)


def _fail(message: str, status: int = 2) -> None:
    print(f"pairloc: {message}", file=sys.stderr)
    sys.exit(status)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pairloc {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    path: Annotated[Path, typer.Argument(help="An annotation file, or the folder of one or several data sets.")],
    images: Images = None,
    format: Format = "auto",
    deep: Annotated[bool, typer.Option("--deep", help="Decode whole pictures, not only their headers.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    most: Annotated[int, typer.Option("--most", min=1, help="Places to name of each kind of finding.")] = 5,
) -> None:
    """Say what is in a data set, and everything in it that will hurt later.

    Exit status 0: the data can be used; 1: it cannot; 2: there is no readable data set.
    """
    from pairloc.data.doctor import examine
    from pairloc.progress import track

    report = examine(
        path, format, images, deep=deep, track=lambda pairs, total: track(pairs, total, "looking at pictures")
    )
    if as_json:
        print(json.dumps(report.to_json(), indent=1, ensure_ascii=False))
    else:
        _print_report(report, most)
    if not report.usable:
        raise typer.Exit(1)


def _print_report(report: "Report", most: int) -> None:
    from pairloc.data.findings import KINDS

    for summary in report.summaries:
        print(f"{summary.file} ({summary.format})")
        print(f"  images   {summary.images}, tags per image {summary.tags_per_image} (at most {summary.most_tags})")
        ranked = sorted(summary.images_per_class.items(), key=lambda item: -item[1])
        ends = ranked if len(ranked) <= 6 else [*ranked[:3], ("...", 0), *ranked[-2:]]
        listed = ", ".join(name if name == "..." else f"{name} {count}" for name, count in ends)
        print(f"  classes  {summary.classes}: {listed}")
        sizes = ", ".join(f"{count} {name}" for name, count in summary.box_sizes.items())
        print(f"  boxes    {summary.boxes}" + (f": {sizes}" if summary.boxes else ""))
        print(f"  pictures {summary.folder or 'not looked at: name their folder with --images'}")
    for kind, count in sorted(report.findings.counts().items(), key=lambda item: KINDS[item[0]].severity):
        print(f"\n{KINDS[kind].severity}: {count} x {KINDS[kind].title}; {KINDS[kind].remedy}")
        same = [finding for finding in report.findings if finding.kind == kind]
        for finding in same[:most]:
            print(f"  {finding.place}: {finding.problem}")
        if count > most:
            print(f"  ... and {count - most} more (--most, --json)")
    errors, warnings = len(report.findings.errors), len(report.findings) - len(report.findings.errors)
    verdict = "can be used" if report.usable else "cannot be used"
    if report.usable and not report.pictures:
        verdict += " as far as its annotations go"
    print(f"\nThis data {verdict}: {errors} errors, {warnings} warnings, {report.pictures} pictures looked at.")


@app.command()
def scenes(
    out: Out,
    seed: Seed = 0,
    source_images: Annotated[int, typer.Option("--source-images", help="Annotated images of source classes.")] = 1000,
    target_images: Annotated[int, typer.Option("--target-images", help="Tagged images of target classes.")] = 400,
    size: Annotated[int, typer.Option("--size", help="Side of the pictures in pixels.")] = 128,
) -> None:
    """Draw generated scenes as an ordinary data set: pictures, COCO JSON and tags."""
    _write_scenes(out, seed=seed, source_images=source_images, target_images=target_images, size=size)


def _write_scenes(out: Path, **values: int) -> None:
    from pairloc.config import SceneSettings
    from pairloc.data.scenes import write_scenes
    from pairloc.files import output_folder
    from pairloc.progress import track

    settings = _settings(SceneSettings, dict(values))
    with output_folder(out, "pairloc scenes", settings.model_dump()) as folder:
        split = write_scenes(folder, settings, lambda items, total: track(items, total, "drawing scenes"))
    _print_split(split, out)


@split_app.command("coco17")
def split_coco17(
    annotations: FirstFile,
    out: Out,
    val: Annotated[
        Path | None, typer.Argument(help="The validation annotations (val2017).", show_default=False)
    ] = None,
) -> None:
    """Cut COCO 2017 by the paper's protocol: 63 source classes, 17 target classes."""
    from pairloc.data import splits
    from pairloc.data.reading import read_annotated
    from pairloc.files import output_folder

    files = [annotations, *([val] if val else [])]
    with output_folder(out, "pairloc split coco17", {"annotations": [str(file) for file in files]}) as folder:
        parts = [read_annotated(file) for file in files]
        split = splits.split_coco17(*parts)
        split.write(folder)
    _print_split(split, out)
    train_ids = {image.id for image in parts[0][0].images}
    in_train = sum(image.id in train_ids for image in split.target[0].images)
    print(f"  target images from training annotations {in_train}, from validation {len(split.target[0]) - in_train}")


@split_app.command("classes")
def split_classes(
    annotations: FirstFile,
    out: Out,
    target: Annotated[
        list[str], typer.Option("--target", help="Target classes, separated by commas; may be repeated.")
    ],
    mixed: Annotated[Mixed, typer.Option("--mixed", help="Where images with classes of both kinds go.")] = Mixed.source,
    format: Format = "auto",
    images: Images = None,
) -> None:
    """Cut any annotated data set by target classes."""
    from pairloc.data import splits
    from pairloc.data.reading import read_annotated
    from pairloc.files import output_folder

    names = [name.strip() for entry in target for name in entry.split(",") if name.strip()]
    if not names:
        raise InputError("--target names no class")
    settings = {"annotations": str(annotations), "target": names, "mixed": mixed.value}
    with output_folder(out, "pairloc split classes", settings) as folder:
        split = splits.split_classes(read_annotated(annotations, format, images), names, mixed.value)
        split.write(folder)
    _print_split(split, out)


@split_app.command("ilsvrc100")
def split_ilsvrc100(
    root: Annotated[Path, typer.Option("--root", help="The ILSVRC folder, with Annotations/DET in it.")],
    out: Out,
    val1: Annotated[Path | None, typer.Option("--val1", help="List of the images of val1; else val is halved.")] = None,
    names: Annotated[Path | None, typer.Option("--names", help="map_det.txt, where it is not in the folder.")] = None,
    boxes_per_class: Annotated[
        int, typer.Option("--boxes-per-class", min=0, help="Boxes to fill every class up to.")
    ] = 1000,
    seed: Seed = 0,
) -> None:
    """Cut ILSVRC 2013 DET by the paper's protocol: first 100 classes source, last 100 target."""
    import numpy as np

    from pairloc.data import splits
    from pairloc.data.ilsvrc import read_ilsvrc, read_names
    from pairloc.files import output_folder

    settings = {"root": str(root), "val1": str(val1), "boxes_per_class": boxes_per_class, "seed": seed}
    with output_folder(out, "pairloc split ilsvrc100", settings) as folder:
        split = splits.split_ilsvrc100(
            read_ilsvrc(root, names),
            np.random.default_rng(seed),
            val1=None if val1 is None else read_names(val1),
            boxes_per_class=boxes_per_class,
        )
        split.write(folder)
    _print_split(split, out)


def _print_split(split: "Split", out: Path) -> None:
    print(f"wrote {out}")
    for part, counts in split.counts().items():
        print(f"  {part:7}" + ", ".join(f"{count} {what}" for what, count in counts.items()))
        if counts["images"] == 0:
            print(f"pairloc: there is no {part} image in these annotations", file=sys.stderr)


@app.command()
def export(
    boxes: Annotated[Path, typer.Argument(help="COCO JSON with boxes, such as a run's boxes.json.")],
    to: Annotated[str, typer.Option("--to", help="coco, voc, yolo, label-studio, cvat or csv.")],
    out: Out,
    images: Annotated[
        Path | None, typer.Option("--images", help="Put these pictures beside the labels (voc, yolo, cvat).")
    ] = None,
    format: Format = "auto",
) -> None:
    """Write boxes in the form the next program reads."""
    from pairloc.data.reading import read_boxes
    from pairloc.export import write, writer
    from pairloc.files import output_folder

    writer(to)  # before any work is done
    with output_folder(out, "pairloc export", {"boxes": str(boxes), "to": to, "images": str(images)}) as folder:
        dataset, found = read_boxes(boxes, format, images)
        write(to, folder, dataset, found, images)
    print(f"wrote {out}: {len(found)} boxes of {len(dataset)} images as {to}")


propose_app = typer.Typer(help="The proposer, which learns from a source what an object is.", no_args_is_help=True)
bags_app = typer.Typer(help="Bags: proposals and features of pictures, in a store.", no_args_is_help=True)
app.add_typer(propose_app, name="propose")
app.add_typer(bags_app, name="bags")
Device = Annotated[str, typer.Option("--device", help="cpu or cuda; auto takes a GPU where there is one.")]
Data = Annotated[Path, typer.Option("--data", help="The data set: annotations or tags.")]
Store = Annotated[Path, typer.Argument(help="The folder of a bag store.")]


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda") or (name == "cuda" and not torch.cuda.is_available()):
        raise InputError(f"--device {name}: is not here; use cpu" + (" or cuda" if torch.cuda.is_available() else ""))
    return name


def _settings(kind: "type[S]", values: dict[str, object]) -> "S":
    """Settings from options; a value out of range names its option."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--" + str(first["loc"][0]).replace("_", "-")
        raise InputError(f"{option}: {first['msg'].lower()}, not {first['input']!r}") from error


@propose_app.command("train")
def propose_train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="The folder to write; an interrupted training goes on from it.")],
    images: Images = None,
    format: Format = "auto",
    backbone: Annotated[
        str, typer.Option("--backbone", help="efficientnet-lite0, resnet50, or a timm model.")
    ] = "efficientnet-lite0",
    class_agnostic: Annotated[bool, typer.Option("--class-agnostic", help="Learn one class, object.")] = False,
    image_size: Annotated[int, typer.Option("--image-size", help="Pixels of the longer side.")] = 320,
    epochs: Annotated[int, typer.Option("--epochs")] = 6,
    batch: Annotated[int, typer.Option("--batch")] = 16,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 0.01,
    workers: Annotated[int, typer.Option("--workers", help="Processes that read pictures.")] = 0,
    device: Device = "auto",
    seed: Seed = 0,
) -> None:
    """Train the proposer, a Faster R-CNN, on the boxes of a source."""
    from pairloc.bags.proposer import train
    from pairloc.config import ProposerSettings
    from pairloc.data.reading import read_annotated

    values: dict[str, object] = {
        "backbone": backbone, "class_agnostic": class_agnostic, "image_size": image_size, "epochs": epochs,
        "batch": batch, "lr": lr, "workers": workers, "seed": seed,
    }  # fmt: skip
    settings = _settings(ProposerSettings, values)
    dataset, truth = read_annotated(data, format, images)
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(out / "tensorboard")) as writer:
        train(dataset, truth, settings, out, device=_device(device), say=print, writer=writer)
    print(f"wrote {out}")


@bags_app.command("extract")
def bags_extract(
    proposer: Annotated[Path, typer.Option("--proposer", help="The folder of a trained proposer.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="The store; an interrupted extraction goes on from it.")],
    images: Images = None,
    format: Format = "auto",
    proposals: Annotated[int, typer.Option("-B", "--proposals", help="Proposals a picture.")] = 100,
    features_from: Annotated[
        Path | None, typer.Option("--features-from", help="Another proposer for the features.")
    ] = None,
    class_features: Annotated[
        str, typer.Option("--class-features", help="backbone-roi, backbone-crops, alexnet-crops or none.")
    ] = "backbone-roi",
    whole_image: Annotated[bool, typer.Option(help="Add the box of the whole picture.")] = True,
    unreadable: Annotated[
        Unreadable, typer.Option("--unreadable", help="What a picture that cannot be read does.")
    ] = Unreadable.fail,
    batch: Annotated[int, typer.Option("--batch")] = 8,
    workers: Annotated[int, typer.Option("--workers", help="Processes that read pictures.")] = 0,
    device: Device = "auto",
) -> None:
    """Turn pictures into bags. Under torchrun the processes share the work."""
    from pairloc.bags.extract import extract
    from pairloc.config import ExtractSettings
    from pairloc.data.reading import read
    from pairloc.progress import track

    values: dict[str, object] = {
        "proposals": proposals, "class_features": class_features, "whole_image": whole_image,
        "unreadable": unreadable.value, "batch": batch, "workers": workers,
    }  # fmt: skip
    settings = _settings(ExtractSettings, values)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    finished = extract(
        read(data, format, images), proposer, out, settings, features_folder=features_from, device=_device(device),
        rank=rank, world=world, track=lambda shards, total: track(shards, total, "extracting shards"),
    )  # fmt: skip
    print(f"wrote {out}" if finished else f"wrote the shards of process {rank} into {out}")


@bags_app.command("info")
def bags_info(store: Store) -> None:
    """Say what is in a store."""
    from pairloc.bags.store import BagStore

    for name, value in BagStore(store).info().items():
        print(f"{name:20} {value}")


@bags_app.command("verify")
def bags_verify(store: Store) -> None:
    """Check every file of a store against its hash; exit status 1 where one differs."""
    from pairloc.bags.store import BagStore

    bad = BagStore(store).verify()
    for line in bad:
        print(line)
    print(f"{len(bad)} files differ" if bad else "all files are as they were written")
    if bad:
        raise typer.Exit(1)


@bags_app.command("import")
def bags_import(
    proposals: Annotated[Path, typer.Option("--proposals", help="COCO results: image_id, bbox, score.")],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="The store to write.")],
    features: Annotated[Path | None, typer.Option("--features", help="(results, d) .npy, a row a result.")] = None,
    count: Annotated[int, typer.Option("-B", min=1, help="Proposals kept a picture.")] = 100,
    format: Format = "auto",
    images: Images = None,
) -> None:
    """Make a store of any detector's boxes."""
    from pairloc.bags.importing import import_bags
    from pairloc.data.reading import read

    kept = import_bags(read(data, format, images), proposals, out, features=features, count=count)
    print(f"wrote {out}: {kept} proposals")


@bags_app.command("recall")
def bags_recall(
    store: Store,
    truth: Annotated[Path, typer.Option("--truth", help="The boxes of the same images.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how many true boxes the proposals cover, by class and by number of proposals."""
    from pairloc.bags.store import BagStore
    from pairloc.data.reading import read_annotated
    from pairloc.evaluation.recall import recall_of_store

    found = recall_of_store(BagStore(store), *read_annotated(truth))
    if as_json:
        print(json.dumps(found))
        return
    print(f"{'':24} {'boxes':>7}  " + "  ".join(f"{name:>11}" for name in found["columns"]))
    for row in found["rows"]:
        print(f"{row['name'][:24]:24} {row['boxes']:>7}  " + "  ".join(f"{value:11.3f}" for value in row["values"]))
    ceiling = ", ".join(f"{value:.3f} {threshold}" for threshold, value in found["images"].items())
    print(f"images whose class is covered by one of all proposals, mean over classes: {ceiling}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")] = Path("demo"), seed: Seed = 0
) -> None:
    """Run what stands of the method on generated scenes. So far: the scenes themselves, looked over by the doctor."""
    from pairloc.data.doctor import examine

    _write_scenes(out, seed=seed)
    report = examine(out)
    print()
    _print_report(report, most=3)
    if not report.usable:
        raise typer.Exit(1)
