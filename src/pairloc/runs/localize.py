"""Tags in, boxes out, with weights that were learned before: the settings of a run without a source."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pairloc.datasets.building import images_below
from pairloc.errors import InputError
from pairloc.io import first_problem
from pairloc.runs.run import Log, Run
from pairloc.runs.stages import some
from pairloc.settings import RunSettings
from pairloc.weights import PACKAGED, extract_of, localization_of


def localize_settings(
    images: Path,
    tags: Path,
    *,
    weights: str = PACKAGED,
    rounds: int | None = None,
    fine_tune: bool = False,
    format: str = "auto",
    device: str = "auto",
    workers: int = 0,
    processes: int = 1,
    seed: int | None = None,
) -> RunSettings:
    """The settings of a run that finds a box for every tag; an image that cannot be read is left out.

    Settings are those the weights come with, the seed included, unless given.
    """
    learning: dict[str, Any] = localization_of(weights).model_dump()
    seed = learning["seed"] if seed is None else seed
    folder = weights if weights == PACKAGED else str(Path(weights).resolve())  # a run is the same from any folder
    learning |= {"seed": seed} | ({} if rounds is None else {"rounds": rounds})
    try:
        return RunSettings.model_validate(
            {
                "data": {"target": tags.resolve(), "target_images": images.resolve(), "target_format": format},
                "weights": folder,
                "methods": ("full", "fine-tuned") if fine_tune else ("full",),
                "localization": learning,
                "fine_tune": {"seed": seed, "workers": workers},
                "extract": extract_of(weights).model_dump() | {"workers": workers},
                "seed": seed, "device": device, "processes": processes,
            }
        )  # fmt: skip
    except ValidationError as error:
        said = first_problem(error)
        key, _, problem = said.partition(": ")
        raise InputError(f"--{key.rsplit('.', 1)[-1]}: {problem}") from error


def localize(settings: RunSettings, out: Path, device: str, log: Log = print) -> Run:
    """Find the boxes, into `out`: boxes.json, report.html and what they were made from. Goes on where it stopped."""
    run = Run(out, settings, device, log)
    images = settings.data.target_images
    assert images is not None
    if not images.is_dir():
        raise InputError(f"{images}: is not a folder of images")
    tagged = {image.file for image in run.target.images}
    without = sorted(set(images_below(images)) - tagged)
    if without:
        log(f"{len(without)} images have no tag and get no box: {some(without)}")
    if not any((images / file).is_file() for file in tagged):
        raise InputError(f"{images}: holds none of the {len(tagged)} images that {settings.data.target} names")
    run.run()
    return run
