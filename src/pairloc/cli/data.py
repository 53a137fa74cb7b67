"""Commands for data sets: check, split, generate and export them."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairloc.cli.options import Format, Images, Out, Seed, settings_of
from pairloc.errors import InputError

if TYPE_CHECKING:
    from pairloc.curation.doctor import Report
    from pairloc.curation.splits import Split

split_app = typer.Typer(help="Split an annotated data set into source and target.", no_args_is_help=True)
FirstFile = Annotated[Path, typer.Option("--annotations", help="Annotated data set (of COCO: train2017).")]

ValFile = Annotated[Path | None, typer.Argument(help="Validation annotations (val2017).", show_default=False)]


class Mixed(StrEnum):
    """Where images with source and target classes go."""

    source = "source"
    target = "target"
    both = "both"


def doctor(
    path: Annotated[Path, typer.Argument(help="Annotation file, or the folder of one or more data sets.")],
    images: Images = None,
    format: Format = "auto",
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode the whole images instead of only their headers.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    most: Annotated[
        int, typer.Option("--limit", min=1, help="Maximum number of examples to list for each kind of problem.")
    ] = 5,
) -> None:
    """Summarise a data set and list every problem that would matter later.

    The exit status is 0 if the data can be used, 1 if it cannot, and 2 if no data set can be read.
    """
    from pairloc.curation.doctor import examine
    from pairloc.progress import track

    report = examine(path, format, images, deep=deep, track=lambda pairs, total: track(pairs, total, "checking images"))
    if as_json:
        print(json.dumps(report.to_json(), indent=1, ensure_ascii=False))
    else:
        _print_report(report, most)
    if not report.usable:
        raise typer.Exit(1)


def _print_report(report: "Report", most: int) -> None:
    from pairloc.datasets.findings import KINDS

    for summary in report.summaries:
        print(f"{summary.file} ({summary.format})")
        print(f"  images   {summary.images}, tags per image {summary.tags_per_image} (at most {summary.most_tags})")
        ranked = sorted(summary.images_per_class.items(), key=lambda item: -item[1])
        ends = ranked if len(ranked) <= 6 else [*ranked[:3], ("...", 0), *ranked[-2:]]
        listed = ", ".join(name if name == "..." else f"{name} {count}" for name, count in ends)
        print(f"  classes  {summary.classes}: {listed}")
        sizes = ", ".join(f"{count} {name}" for name, count in summary.box_sizes.items())
        print(f"  boxes    {summary.boxes}" + (f": {sizes}" if summary.boxes else ""))
        print(f"  folder   {summary.folder or 'not found, images not checked: name it with --images'}")
    for kind, count in sorted(report.findings.counts().items(), key=lambda item: KINDS[item[0]].severity):
        print(f"\n{KINDS[kind].severity}: {count} x {KINDS[kind].title}; {KINDS[kind].remedy}")
        of_kind = [finding for finding in report.findings if finding.kind == kind]
        for finding in of_kind[:most]:
            print(f"  {finding.place}: {finding.problem}")
        if count > most:
            print(f"  ... and {count - most} more (--limit, --json)")
    errors, warnings = len(report.findings.errors), len(report.findings) - len(report.findings.errors)
    verdict = "can be used" if report.usable else "cannot be used"
    if report.usable and not report.checked:
        verdict += ", judging by its annotations alone"
    print(f"\nThis data {verdict}: {errors} errors, {warnings} warnings, {report.checked} images checked.")


def scenes(
    out: Out,
    seed: Seed = 0,
    source_images: Annotated[
        int, typer.Option("--source-images", help="Number of annotated images of source classes.")
    ] = 1000,
    target_images: Annotated[
        int, typer.Option("--target-images", help="Number of tagged images of target classes.")
    ] = 400,
    size: Annotated[int, typer.Option("--size", help="Width and height of the images in pixels.")] = 128,
) -> None:
    """Generate a small data set to try things on: images of simple scenes, COCO JSON and tags."""
    _write_scenes(out, seed=seed, source_images=source_images, target_images=target_images, size=size)


def _write_scenes(out: Path, **values: int) -> None:
    from pairloc.curation.scenes import write_scenes
    from pairloc.io import output_folder
    from pairloc.progress import track
    from pairloc.settings import SceneSettings

    settings = settings_of(SceneSettings, dict(values))
    with output_folder(out, "pairloc scenes", settings.model_dump()) as folder:
        split = write_scenes(folder, settings, lambda items, total: track(items, total, "drawing scenes"))
    _print_split(split, out)


@split_app.command("coco17")
def split_coco17(
    annotations: FirstFile,
    out: Out,
    val: ValFile = None,
) -> None:
    """Split COCO 2017 as in the paper: 63 source classes, 17 target classes."""
    from pairloc.curation import splits
    from pairloc.formats.reading import read_annotated
    from pairloc.io import output_folder

    files = [annotations, *([val] if val else [])]
    with output_folder(out, "pairloc split coco17", {"annotations": [str(file) for file in files]}) as folder:
        parts = [read_annotated(file) for file in files]
        split = splits.split_coco17(*parts)
        split.write(folder)
    _print_split(split, out)
    train_ids = {image.id for image in parts[0][0].images}
    in_train = sum(image.id in train_ids for image in split.target[0].images)
    print(f"  target images from training annotations {in_train}, from validation {len(split.target[0]) - in_train}")


@split_app.command("play")
def split_play(annotations: FirstFile, out: Out, val: ValFile = None) -> None:
    """Split the 63 source classes of coco17 again, 46 as source and 17 as a stand-in target, to choose settings on."""
    from pairloc.curation import splits
    from pairloc.formats.reading import read_annotated
    from pairloc.io import output_folder

    files = [annotations, *([val] if val else [])]
    with output_folder(out, "pairloc split play", {"annotations": [str(file) for file in files]}) as folder:
        split = splits.split_play(*(read_annotated(file) for file in files))
        split.write(folder)
    _print_split(split, out)


@split_app.command("coco40")
def split_coco40(
    annotations: FirstFile,
    out: Out,
    val: ValFile = None,
    images_per_class: Annotated[
        int, typer.Option("--images-per-class", min=1, help="Number of images to draw for every class.")
    ] = 650,
    seed: Seed = 0,
) -> None:
    """Split COCO 2017 in the shape of the paper's ILSVRC experiment: 40 source classes, 40 target classes."""
    import numpy as np

    from pairloc.curation import splits
    from pairloc.formats.reading import read_annotated
    from pairloc.io import output_folder

    files = [annotations, *([val] if val else [])]
    settings = {"annotations": [str(file) for file in files], "images_per_class": images_per_class, "seed": seed}
    with output_folder(out, "pairloc split coco40", settings) as folder:
        train, test = read_annotated(annotations), read_annotated(val) if val else None
        split = splits.split_coco40(train, test, np.random.default_rng(seed), images_per_class=images_per_class)
        split.write(folder)
    _print_split(split, out)


@split_app.command("classes")
def split_classes(
    annotations: FirstFile,
    out: Out,
    target: Annotated[
        list[str], typer.Option("--target", help="Target classes, separated by commas. May be repeated.")
    ],
    mixed: Annotated[
        Mixed, typer.Option("--mixed", help="Where to put images that have classes of both kinds.")
    ] = Mixed.source,
    format: Format = "auto",
    images: Images = None,
) -> None:
    """Split any annotated data set by the classes that become the target."""
    from pairloc.curation import splits
    from pairloc.formats.reading import read_annotated
    from pairloc.io import output_folder

    names = [name.strip() for entry in target for name in entry.split(",") if name.strip()]
    if not names:
        raise InputError("--target: names no class; give class names separated by commas")
    settings = {"annotations": str(annotations), "target": names, "mixed": mixed.value}
    with output_folder(out, "pairloc split classes", settings) as folder:
        split = splits.split_classes(read_annotated(annotations, format, images), names, mixed.value)
        split.write(folder)
    _print_split(split, out)


@split_app.command("ilsvrc100")
def split_ilsvrc100(
    root: Annotated[Path, typer.Option("--root", help="ILSVRC folder, which contains Annotations/DET.")],
    out: Out,
    val1: Annotated[
        Path | None, typer.Option("--val1", help="File that lists the images of val1; by default val is halved.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option("--names", help="Path of map_det.txt, if it is not in the folder.")
    ] = None,
    boxes_per_class: Annotated[
        int, typer.Option("--boxes-per-class", min=0, help="Number of boxes to fill every class up to.")
    ] = 1000,
    seed: Seed = 0,
) -> None:
    """Split ILSVRC 2013 DET as in the paper: the first 100 classes are the source, the last 100 the target."""
    import numpy as np

    from pairloc.curation import splits
    from pairloc.formats.ilsvrc import read_ilsvrc, read_image_set
    from pairloc.io import output_folder

    settings = {"root": str(root), "val1": str(val1), "boxes_per_class": boxes_per_class, "seed": seed}
    with output_folder(out, "pairloc split ilsvrc100", settings) as folder:
        split = splits.split_ilsvrc100(
            read_ilsvrc(root, names),
            np.random.default_rng(seed),
            val1=None if val1 is None else read_image_set(val1),
            boxes_per_class=boxes_per_class,
        )
        split.write(folder)
    _print_split(split, out)


def _print_split(split: "Split", out: Path) -> None:
    print(f"wrote {out}")
    for part, counts in split.counts().items():
        print(f"  {part:7}" + ", ".join(f"{count} {what}" for what, count in counts.items()))
        if counts["images"] == 0:
            print(f"pairloc: these annotations have no {part} image", file=sys.stderr)


def export(
    boxes: Annotated[Path, typer.Argument(help="COCO JSON with boxes, such as boxes.json of a run.")],
    to: Annotated[str, typer.Option("--to", help="Format to write: coco, voc, yolo, label-studio, cvat or csv.")],
    out: Out,
    images: Annotated[
        Path | None,
        typer.Option("--images", help="Folder of the images, to place them next to the labels (voc, yolo, cvat)."),
    ] = None,
    format: Format = "auto",
) -> None:
    """Convert boxes to the format that another program reads."""
    from pairloc.formats.reading import read_boxes
    from pairloc.formats.writing import check_writable, write
    from pairloc.io import output_folder

    check_writable(to)  # fail before any work is done
    with output_folder(out, "pairloc export", {"boxes": str(boxes), "to": to, "images": str(images)}) as folder:
        dataset, found = read_boxes(boxes, format, images)
        write(to, folder, dataset, found, images)
    print(f"wrote {out}: {len(found)} boxes of {len(dataset)} images as {to}")
