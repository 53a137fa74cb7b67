"""Verbs on proposers and bags."""

import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pairloc.cli.options import Data, Device, Format, Images, Seed, Workers, device_of, settings_of, workers_of

propose_app = typer.Typer(help="The proposer, which learns from a source what an object is.", no_args_is_help=True)
bags_app = typer.Typer(help="Bags: proposals and features of pictures, in a store.", no_args_is_help=True)
Store = Annotated[Path, typer.Argument(help="The folder of a bag store.")]


class Unreadable(StrEnum):
    """What a picture that cannot be read does."""

    fail = "fail"
    skip = "skip"


class Optimizer(StrEnum):
    """How the proposer's weights are improved."""

    sgd = "sgd"
    adamw = "adamw"


@propose_app.command("train")
def propose_train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="The folder to write; an interrupted training goes on from it.")],
    images: Images = None,
    format: Format = "auto",
    backbone: Annotated[
        str, typer.Option("--backbone", help="efficientnet-lite0, -lite1, -lite2, resnet50, or a timm model.")
    ] = "efficientnet-lite0",
    class_agnostic: Annotated[bool, typer.Option("--class-agnostic", help="Learn one class, object.")] = False,
    image_size: Annotated[int, typer.Option("--image-size", help="Pixels of the longer side.")] = 320,
    epochs: Annotated[int, typer.Option("--epochs")] = 3,
    batch: Annotated[int, typer.Option("--batch")] = 16,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate; for sgd take 0.01.")] = 5e-4,
    optimizer: Annotated[Optimizer, typer.Option("--optimizer")] = Optimizer.adamw,
    crop: Annotated[
        float, typer.Option("--crop", help="Cut training pictures to at least this share of a side.")
    ] = 1.0,
    held_out: Annotated[float, typer.Option("--held-out", help="Share of the images it is never shown.")] = 0.05,
    held_classes: Annotated[
        int, typer.Option("--held-classes", help="Classes it is not taught, to measure recall on.")
    ] = 0,
    workers: Workers = None,
    device: Device = "auto",
    seed: Seed = 0,
) -> None:
    """Train the proposer, a Faster R-CNN, on the boxes of a source."""
    from pairloc.detector.training import train
    from pairloc.formats.reading import read_annotated
    from pairloc.settings import ProposerSettings

    chosen = device_of(device)
    values: dict[str, object] = {
        "backbone": backbone, "class_agnostic": class_agnostic, "image_size": image_size, "epochs": epochs,
        "batch": batch, "lr": lr, "optimizer": optimizer.value, "crop": crop, "held_out": held_out,
        "held_classes": held_classes, "workers": workers_of(workers, chosen), "seed": seed,
    }  # fmt: skip
    settings = settings_of(ProposerSettings, values)
    dataset, truth = read_annotated(data, format, images)
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(out / "tensorboard")) as writer:
        train(dataset, truth, settings, out, device=chosen, say=print, writer=writer)
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
    workers: Workers = None,
    device: Device = "auto",
) -> None:
    """Turn pictures into bags. Under torchrun the processes share the work."""
    from pairloc.bags.extract import extract
    from pairloc.formats.reading import read
    from pairloc.progress import track
    from pairloc.settings import ExtractSettings

    chosen = device_of(device)
    values: dict[str, object] = {
        "proposals": proposals, "class_features": class_features, "whole_image": whole_image,
        "unreadable": unreadable.value, "batch": batch, "workers": workers_of(workers, chosen),
    }  # fmt: skip
    settings = settings_of(ExtractSettings, values)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    finished = extract(
        read(data, format, images), proposer, out, settings, features_folder=features_from, device=chosen,
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
    from pairloc.formats.reading import read

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
    from pairloc.evaluation.recall import recall_of_store
    from pairloc.formats.reading import read_annotated

    found = recall_of_store(BagStore(store), *read_annotated(truth))
    if as_json:
        print(json.dumps(found))
        return
    print(f"{'':24} {'boxes':>7}  " + "  ".join(f"{name:>11}" for name in found["columns"]))
    for row in found["rows"]:
        print(f"{row['name'][:24]:24} {row['boxes']:>7}  " + "  ".join(f"{value:11.3f}" for value in row["values"]))
    ceiling = ", ".join(f"{value:.3f} {threshold}" for threshold, value in found["images"].items())
    print(f"images whose class is covered by one of all proposals, mean over classes: {ceiling}")
