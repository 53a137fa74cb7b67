"""Commands for proposers and bags."""

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pairloc.cli.options import (
    Changes,
    Data,
    Device,
    Download,
    Format,
    Images,
    Preset,
    Seed,
    Workers,
    settings_of,
    workers_of,
)

propose_app = typer.Typer(help="Train the network that proposes boxes.", no_args_is_help=True)
bags_app = typer.Typer(
    help="Extract, import and check bags: the candidate boxes of every image with their features.", no_args_is_help=True
)
Store = Annotated[Path, typer.Argument(help="Folder of a bag store.")]


class Unreadable(StrEnum):
    """What to do about an image that cannot be read."""

    fail = "fail"
    skip = "skip"


@propose_app.command("train")
def propose_train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Folder to write. An interrupted training resumes in it.")],
    images: Images = None,
    format: Format = "auto",
    preset: Preset = "default",
    changes: Changes = None,
    download: Download = False,
    workers: Workers = None,
    device: Device = "auto",
    seed: Seed = 0,
) -> None:
    """Train the proposer, a Faster R-CNN, on the boxes of a source. Change its settings with `--set epochs=6`."""
    from pairloc.detector.backbones import check_pretrained
    from pairloc.detector.training import claim_training, train
    from pairloc.formats.reading import read_annotated
    from pairloc.platform import choose_device
    from pairloc.presets import preset as read_preset
    from pairloc.progress import track
    from pairloc.runs.results import tensorboard
    from pairloc.settings import ProposerSettings

    chosen = choose_device(device)
    values = read_preset(preset).get("proposer", {}) | {
        "workers": workers_of(workers, chosen), "seed": seed, "download": download,
    }  # fmt: skip
    settings = settings_of(ProposerSettings, values, changes or ())
    check_pretrained(settings)
    claim_training(out)
    dataset, truth = read_annotated(data, format, images)
    with tensorboard(out) as writer:
        steps = partial(track, what="training steps")
        train(dataset, truth, settings, out, device=chosen, log=print, writer=writer, track=steps)
    print(f"wrote {out}")


@bags_app.command("extract")
def bags_extract(
    proposer: Annotated[Path, typer.Option("--proposer", help="Folder of a trained proposer.")],
    data: Data,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the store to write. An interrupted extraction resumes in it.")
    ],
    images: Images = None,
    format: Format = "auto",
    features_from: Annotated[
        Path | None, typer.Option("--features-from", help="Folder of another proposer that computes the features.")
    ] = None,
    unreadable: Annotated[
        Unreadable, typer.Option("--unreadable", help="Whether an image that cannot be read is skipped or an error.")
    ] = Unreadable.fail,
    changes: Changes = None,
    download: Download = False,
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Extract the bags of images. Change the settings with `--set proposals=300`."""
    from pairloc.bags.extract import extract
    from pairloc.bags.features import check_class_features
    from pairloc.formats.reading import read
    from pairloc.platform import choose_device
    from pairloc.progress import track
    from pairloc.settings import ExtractSettings

    chosen = choose_device(device)
    values = {"unreadable": unreadable.value, "workers": workers_of(workers, chosen), "download": download}
    settings = settings_of(ExtractSettings, values, changes or ())
    check_class_features(settings.class_features, download=settings.download)
    extract(
        read(data, format, images), proposer, out, settings, features_folder=features_from, device=chosen,
        track=partial(track, what="images", size=len),
    )  # fmt: skip
    print(f"wrote {out}")


@bags_app.command("info")
def bags_info(store: Store) -> None:
    """Summarise what is in a store."""
    from pairloc.bags.store import BagStore

    for name, value in BagStore(store).info().items():
        print(f"{name:20} {value}")


@bags_app.command("verify")
def bags_verify(store: Store) -> None:
    """Check every file of a store against its hash. The exit status is 1 if one differs."""
    from pairloc.bags.store import BagStore

    problems = BagStore(store).verify()
    for line in problems:
        print(line)
    print(f"{len(problems)} files differ" if problems else "no file has changed since it was written")
    if problems:
        raise typer.Exit(1)


@bags_app.command("import")
def bags_import(
    proposals: Annotated[
        Path, typer.Option("--proposals", help="Candidate boxes as COCO results: image_id, bbox, score.")
    ],
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="Folder of the store to write.")],
    features: Annotated[
        Path | None, typer.Option("--features", help="Features as a .npy array (results, d), one row per result.")
    ] = None,
    count: Annotated[int, typer.Option("-B", min=1, help="Number of candidate boxes to keep per image.")] = 100,
    format: Format = "auto",
    images: Images = None,
) -> None:
    """Make a store from the boxes of any detector."""
    from pairloc.bags.importing import import_bags
    from pairloc.formats.reading import read

    kept = import_bags(read(data, format, images), proposals, out, features=features, count=count)
    print(f"wrote {out}: {kept} proposals")


@bags_app.command("recall")
def bags_recall(
    store: Store,
    truth: Annotated[Path, typer.Option("--truth", help="Ground truth of the same images.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure how many true boxes the candidates cover, by class and by number of candidates."""
    from pairloc.bags.store import BagStore
    from pairloc.evaluation.recall import recall_of_store
    from pairloc.formats.reading import read_annotated

    recall = recall_of_store(BagStore(store), *read_annotated(truth))
    if as_json:
        print(json.dumps(recall))
        return
    print(f"{'':24} {'boxes':>7}  " + "  ".join(f"{name:>11}" for name in recall["columns"]))
    for row in recall["rows"]:
        print(f"{row['name'][:24]:24} {row['boxes']:>7}  " + "  ".join(f"{value:11.3f}" for value in row["values"]))
    ceiling = ", ".join(f"{value:.3f} {threshold}" for threshold, value in recall["images"].items())
    print(f"images in which a proposal covers an object of the tag, mean over classes: {ceiling}")
