"""Tags in, boxes out, with weights that were learned before: a run without a source."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pairloc.bags.store import BagStore
from pairloc.settings import LearningSettings, RunSettings
from pairloc.datasets.building import pictures_below
from pairloc.formats.reading import read
from pairloc.errors import InputError
from pairloc.io import read_json, reason
from pairloc.runs.run import Run
from pairloc.runs.reporting import write_report
from pairloc.runs.sealing import seal
from pairloc.runs.staging import CONFIG
from pairloc.weights import weights_folder

_NAMED = 10  # pictures named in a message at most
_STEPS = 60  # of a re-training at least


def learning_of(weights: str, rounds: int | None = None) -> LearningSettings:
    """The settings weights come with, or those of the run they are; with another number of rounds where it is given."""
    folder = weights_folder(weights)
    file = folder / "learning.json"
    known: dict[str, Any] = read_json(file) if file.is_file() else {}
    if not known and (folder / CONFIG).is_file():
        known = read_json(folder / CONFIG).get("learning", {})
    if rounds is not None:
        known = known | {"rounds": rounds}
    try:
        return LearningSettings.model_validate(known)
    except ValidationError as error:
        raise InputError(f"{file}: {reason(error)}") from error


def localize(
    images: Path,
    tags: Path,
    out: Path,
    *,
    weights: str,
    rounds: int | None = None,
    fine_tune: bool = False,
    format: str = "auto",
    device: str = "cpu",
    workers: int = 0,
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> Run:
    """Find a box for every tag of every picture, into `out`: boxes.json, report.html and what they were made from.

    Goes on where it stopped. Pictures that cannot be read are named and left out. With `fine_tune` the proposer is
    re-trained on the boxes found, and instances.json has every box of a tag, not only the best.
    """
    target = read(tags, format=format, images=images)
    _say_what_is_missing(images, {image.file for image in target.images}, say)
    if not any((images / image.file).is_file() for image in target.images):
        raise InputError(f"{images}: holds none of the {len(target)} pictures that {tags} names")
    learning = learning_of(weights, rounds)
    steps = min(learning.steps, max(_STEPS, 2 * sum(map(len, target.tags))))  # few pictures are learned in few steps
    learning = learning.model_copy(update={"seed": seed, "steps": steps})
    methods = ("full", "fine-tuned") if fine_tune else ("full",)
    settings = RunSettings.model_validate(
        {
            "data": {"target": tags, "target_images": images}, "weights": weights, "methods": methods, "seed": seed,
            "learning": learning.model_dump(), "fine_tune": {"seed": seed, "workers": workers}, "device": device,
            "extract": {"unreadable": "skip", "workers": workers, "batch": 8 if device == "cpu" else 64},
        }
    )  # fmt: skip
    run = Run(out, settings, device, say)
    run.run()
    unreadable = BagStore(out / "bags" / "target").unreadable
    if unreadable:
        (out / "skipped.txt").write_text("\n".join(unreadable) + "\n", encoding="utf-8")
        say(f"{len(unreadable)} pictures were left out: {_some(unreadable)}")
    for name in ("boxes.json", "instances.json") if fine_tune else ("boxes.json",):
        shutil.copyfile(out / methods[-1] / name, out / name)
    write_report([run], out / "report.html")
    seal(out)
    return run


def _say_what_is_missing(images: Path, tagged: set[str], say: Callable[[str], None]) -> None:
    """Name pictures of the folder that have no tag: they get no box."""
    if not images.is_dir():
        raise InputError(f"{images}: is not a folder of pictures")
    without = sorted(set(pictures_below(images)) - tagged)
    if without:
        say(f"{len(without)} pictures have no tag and get no box: {_some(without)}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more
