"""Localization with weights that were learned before: runs without a source."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pairloc.datasets.building import images_below
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError, abbreviated
from pairloc.formats.reading import read_boxes
from pairloc.io import first_problem
from pairloc.runs.results import BOXES
from pairloc.runs.run import Log, Run
from pairloc.settings import RunSettings
from pairloc.weights import PACKAGED, extract_of, localization_of

_LOW = 0.25  # boxes of a lower mean confidence are probably wrong


def localize_settings(
    images: Path,
    tags: Path,
    *,
    weights: str = PACKAGED,
    rounds: int | None = None,
    fine_tune: bool = False,
    snap: bool = False,
    segmenter: Path | None = None,
    masks: bool = False,
    tags_as_new: bool = False,
    format: str = "auto",
    device: str = "auto",
    workers: int = 0,
    processes: int = 1,
    cluster: str | None = None,
    seed: int | None = None,
    min_confidence: float = 0.0,
) -> RunSettings:
    """Return the settings of a run that finds a box for every tag of a folder of images.

    Settings that are not given, including the seed, are those of the weights. Images that cannot be read are left out.
    A `segmenter` (the file of its weights) and `masks` imply `snap`.
    Raises an InputError if an option is invalid or the weights cannot be used.
    """
    localization: dict[str, Any] = localization_of(weights).model_dump()
    seed = localization["seed"] if seed is None else seed
    folder = weights if weights == PACKAGED else str(Path(weights).resolve())  # the same from any working folder
    if tags_as_new:
        localization["unary"]["tags_as_new"] = True
    methods = ("full", *(("fine-tuned",) if fine_tune else ()), *(("snapped",) if snap or segmenter or masks else ()))
    localization |= {"seed": seed} | ({} if rounds is None else {"rounds": rounds})
    try:
        return RunSettings.model_validate(
            {
                "data": {"target": tags.resolve(), "target_images": images.resolve(), "target_format": format},
                "weights": folder,
                "methods": methods,
                "localization": localization,
                "fine_tune": {"seed": seed, "workers": workers},
                "snap": {"weights": segmenter and segmenter.resolve(), "masks": masks, "workers": workers},
                "extract": extract_of(weights).model_dump() | {"workers": workers},
                "min_confidence": min_confidence,
                "seed": seed, "device": device, "processes": processes, "cluster": cluster,
            }
        )  # fmt: skip
    except ValidationError as error:
        key, _, problem = first_problem(error).partition(": ")
        raise InputError(f"--{key.rsplit('.', 1)[-1].replace('_', '-')}: {problem}") from error


def localize(settings: RunSettings, out: Path, device: str, log: Log = print) -> Run:
    """Run a localization in the folder `out`, which gets boxes.json and report.html; resumes an interrupted run.

    Raises an InputError if the folder of images is missing or has none of the tagged images.
    """
    run = Run(out, settings, device, log)
    images = settings.data.target_images
    assert images is not None
    if not images.is_dir():
        raise InputError(f"{images}: is not a folder; give the folder of the images")
    tagged = {image.file for image in run.target.images}
    untagged = sorted(set(images_below(images)) - tagged)
    if untagged:
        log(f"{len(untagged)} images have no tag and get no box: {abbreviated(untagged)}")
    if not any((images / file).is_file() for file in tagged):
        raise InputError(
            f"{images}: contains none of the {len(tagged)} images in {settings.data.target}; check the paths"
        )
    run.run()
    warning = warning_of(*read_boxes(run.folder / run.result_method / BOXES))
    if warning is not None:
        log(warning)
    return run


def warning_of(found: Dataset, boxes: ScoredBoxes) -> str | None:
    """Say what to do if the boxes are probably wrong, all of them or those of some tags; None if they are not."""
    advice = "review them, or learn from boxes on similar images (docs/how-to/own-source.md)"
    if len(boxes) and boxes.score.mean() < _LOW:
        return (
            f"most boxes are probably wrong: their mean confidence is {100 * boxes.score.mean():.0f}%. The images may "
            f"be unlike those that the weights were learned from; {advice}"
        )
    scores = {name: boxes.score[boxes.label == label] for label, name in enumerate(found.classes)}
    doubtful = [name for name, of_tag in scores.items() if len(of_tag) and of_tag.mean() < _LOW]
    return f"the boxes of these tags are probably wrong: {abbreviated(doubtful)}; {advice}" if doubtful else None
