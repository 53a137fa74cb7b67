"""The work of every stage: a function of the run and of the folder it may write into."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairloc.bags.extract import extract
from pairloc.curation.scenes import write_scenes
from pairloc.detector.model import Proposer
from pairloc.detector.training import for_transfer, train
from pairloc.errors import InputError
from pairloc.evaluation.recall import recall_of_store
from pairloc.evaluation.table import align, evaluate_methods
from pairloc.formats.coco import write_boxes
from pairloc.formats.reading import read_boxes
from pairloc.io import write_json, write_text
from pairloc.localization.calibration import calibrate
from pairloc.localization.descent import Curve
from pairloc.localization.engine import learn_source, localize_target
from pairloc.localization.methods import METHODS
from pairloc.localization.predictions import decide, instances
from pairloc.localization.result import Localization
from pairloc.platform import learning_device
from pairloc.progress import track
from pairloc.report.gathering import write_report
from pairloc.runs import fine_tuning
from pairloc.runs.stage import record_of
from pairloc.settings import RunSettings

if TYPE_CHECKING:
    from pairloc.runs.run import Run

BOXES, INSTANCES, HISTORY, PAGE, SKIPPED = "boxes.json", "instances.json", "history.json", "report.html", "skipped.txt"
RESULTS = (BOXES, INSTANCES)  # of a method
PUBLISHED = (BOXES, INSTANCES, PAGE, SKIPPED)
TITLES = {
    "data": "reading the data",
    "proposer": "learning what an object is",
    "bags": "finding candidate boxes in every image",
    "transfer": "learning when two boxes show the same kind of thing",
    "calibration": "learning how far to trust a box",
    "fine-tuned": "re-training on the boxes found",
    "evaluation": "measuring",
    "report": "writing the page",
}  # the other stages are methods, which choose boxes
_NAMED = 10  # images named in a message at most


def title_of(stage: str, settings: RunSettings) -> str:
    """What the log calls a stage: nothing where there is no truth to measure with, and the method where it matters."""
    if stage == "evaluation" and settings.data.truth is None and settings.data.scenes is None:
        return ""
    choosing = "choosing a box for every tag"
    localizing = settings.weights is not None and set(settings.methods) <= {"full", "fine-tuned"}
    return TITLES.get(stage, choosing if localizing else f"{choosing} ({stage})")


def prepare(run: "Run", folder: Path) -> None:
    """Draw scenes where they are asked for; check that source and target go together."""
    if run.settings.data.scenes is not None:
        scenes = folder / "scenes"
        shutil.rmtree(scenes, ignore_errors=True)
        scenes.mkdir()
        write_scenes(scenes, run.settings.data.scenes, partial(track, what="drawing scenes"))
    shared = sorted(set(run.source[0].classes) & set(run.target.classes)) if run.weights is None else []
    if shared and not run.settings.data.allow_overlap:
        names = ", ".join(repr(name) for name in shared[:5])
        raise InputError(
            f"{len(shared)} classes are in source and target ({names}): the method transfers to other classes; "
            "remove them from one side, or set data.allow_overlap"
        )
    if not run.target.classes:
        raise InputError("the images have no tags: there is nothing to find")
    for name, images in zip(run.target.classes, run.target.positives, strict=True):
        if not images:
            run.log(f"class {name!r} has no tagged image and gets no box")
        if len(images) == 1:
            run.log(f"class {name!r} has one tagged image: there is nothing to compare it with")


def train_proposer(run: "Run", folder: Path) -> None:
    """Train the proposer on the source."""
    with tensorboard(folder) as writer:
        train(*run.source, run.settings.proposer, folder, device=run.device, log=run.log, writer=writer)


def extract_bags(run: "Run", folder: Path) -> None:
    """Turn the images of the target, and of the source where there is one, into bags."""
    parts = {"target": run.target}
    if run.weights is None:
        chosen = for_transfer(*run.source, run.settings.proposer, run.settings.transfer.images)
        parts = {"source": run.source[0].subset(chosen), "target": run.target}
    for name, part in parts.items():
        kind = "tagged" if name == "target" else "source"
        proposer, progress = run.learned_in / "proposer", partial(track, what=f"batches of {kind} images")
        extract(part, proposer, folder / name, run.settings.extract, device=run.device, track=progress)


def learn_scores(run: "Run", folder: Path) -> None:
    """Learn the transfer scores on the source."""
    learned = learn_source(
        run.source_bags, run.source, run.settings.transfer, device=learning_device(run.device), memory=run.memory
    )
    learned.scores.save(folder)
    write_json(folder / "curve.json", learned.curve)
    draw_curves(folder, [learned.curve or []])


def calibrate_confidence(run: "Run", folder: Path) -> None:
    """Fit the curve of confidence on playing classes."""
    settings = run.settings
    found = calibrate(
        run.source_bags,
        run.source,
        settings.transfer,
        settings.localization,
        device=learning_device(run.device),
        memory=run.memory,
    )
    found.save(folder)


def run_method(method: str, run: "Run", folder: Path) -> None:
    """Find the boxes of one method."""
    found = localized(run, method, folder)
    write_result(folder, found)
    run.log(f"  {len(found.boxes)} boxes")


def localized(run: "Run", method: str, folder: Path) -> Localization:
    """Call the engine for a method whose state is kept in a folder."""
    return localize_target(
        run.target_bags, run.target, run.learned, METHODS[method].section(run.settings),  # type: ignore[arg-type]
        method=method, device=learning_device(run.device), memory=run.memory, executor=run.executor, checkpoint=folder,
        log=lambda line: run.log(f"  {line}"),
    )  # fmt: skip


def fine_tune(run: "Run", folder: Path) -> None:
    """Re-train the proposer on the boxes of `full`, fold by fold, and decide with what it then says."""
    own = run.settings.fine_tune
    before = localized(run, "full", run.folder / "full")  # it is done: this reads its state
    boxes = align(*read_boxes(run.folder / "full" / BOXES), run.target)
    start = Proposer.load(run.learned_in / "proposer")
    predictions = fine_tuning.fine_tune(
        run.target, run.target_bags, before, boxes, start, own, folder, device=run.device,
        log=lambda line: run.log(f"  {line}"),
    )  # fmt: skip
    found, moved = decide(before, predictions, own, run.settings.localization.boxes, run.learned.calibration)
    several = instances(before, predictions, moved, own.instance_threshold)
    write_result(folder, found)
    write_boxes(folder / INSTANCES, run.target, several)
    run.log(f"  {len(found.boxes)} boxes, {len(several)} instances")


def write_result(folder: Path, found: Localization) -> None:
    """Write what a method found, with the confidence in it, and how it came to it."""
    write_boxes(folder / BOXES, found.dataset, found.boxes)
    history = [vars(step) for step in found.history]
    facts = {"converged": found.converged, "n_iter": found.n_iter, "curves": found.curves}
    write_json(folder / HISTORY, {"history": history, **facts})
    draw_curves(folder, found.curves)


def evaluate(run: "Run", folder: Path) -> None:
    """Measure CorLoc of every method, where the truth is known."""
    seconds = {}
    for method in run.settings.methods:
        record = record_of(run.folder / method)
        seconds[method] = 0.0 if record is None else record.seconds
    content: dict[str, Any] = {"methods": {}, "seconds": seconds}
    if run.truth is not None:
        files = {method: run.folder / method / BOXES for method in run.settings.methods}
        ceiling = recall_of_store(run.target_bags, *run.truth)["images"]
        content = evaluate_methods(files, *run.truth) | {"ceiling": ceiling, "seconds": seconds}
    write_json(folder / "evaluation.json", content, indent=1)


def report(run: "Run", folder: Path) -> None:
    """Write the page and gather what users look for at the top of the folder."""
    shutil.rmtree(folder / "images", ignore_errors=True)
    write_report([run], folder / PAGE, beside=folder / "images", link="report/images")
    best = run.folder / run.result_method
    for name in (BOXES, INSTANCES):
        if (best / name).is_file():
            write_text(folder / name, (best / name).read_text(encoding="utf-8"))
    skipped = run.target_bags.unreadable
    if skipped:
        write_text(folder / SKIPPED, "\n".join(skipped) + "\n")
        again = f"remove {run.folder / 'bags'} and run again" if run.weights is None else "name another output folder"
        run.log(f"{len(skipped)} images were left out: {some(skipped)}; after repairing them {again}")


def some(names: Sequence[str]) -> str:
    """The first of many names."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "; ".join(names[:_NAMED]) + more


@contextmanager
def tensorboard(folder: Path) -> Iterator[Any]:
    """A writer of curves for TensorBoard where that is installed (`pip install pairloc[tensorboard]`), else None."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield None
        return
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        yield writer


def draw_curves(folder: Path, curves: Sequence[Curve]) -> None:
    """Curves for TensorBoard, one after the other; exact scores have none."""
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    if not any(curves):
        return
    done = 0
    with tensorboard(folder) as writer:
        for curve in curves if writer is not None else ():
            for row in curve:
                for name in ("loss", "held-out loss"):
                    writer.add_scalar(f"{folder.name}/{name}", row[name], done + row["step"])
            done += int(curve[-1]["step"]) if curve else 0
