"""The work of every stage: a function of the run and the folder to write into."""

import shutil
from dataclasses import replace
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
from pairloc.io import copy_file, write_json, write_text
from pairloc.localization.calibration import calibrate
from pairloc.localization.combination import Combination
from pairloc.localization.confidence import FILE as CALIBRATION
from pairloc.localization.engine import learn_classifiers, learn_source, localize_target
from pairloc.localization.explained import FILE as EXPLANATIONS
from pairloc.localization.learned import EVIDENCE, Learned
from pairloc.localization.methods import METHODS
from pairloc.localization.predictions import decide, instances
from pairloc.localization.result import Localization
from pairloc.platform import learning_device
from pairloc.progress import track
from pairloc.report.gathering import write_report
from pairloc.report.outlines import FILE as MASKS
from pairloc.runs import fine_tuning
from pairloc.runs.evidence import play_target, weigh_evidence
from pairloc.runs.learning import AGNOSTIC, Teacher, without_class
from pairloc.runs.results import (
    BOXES,
    HISTORY,
    INSTANCES,
    PAGE,
    RESULTS,
    SKIPPED,
    draw_curves,
    tensorboard,
    write_confident,
    write_result,
)
from pairloc.runs.snapping import load_segmenter, snap_boxes, write_masks
from pairloc.runs.stage import record_of
from pairloc.settings import RunSettings

if TYPE_CHECKING:
    from pairloc.runs.run import Run

_STEPS = partial(track, what="training steps")
PLAYING = "playing"  # the stage of what was never taught the playing classes
TITLES = {
    "data": "reading the data",
    "proposer": "training the proposer",
    AGNOSTIC: "training the class-agnostic proposer",
    "bags": "finding candidate boxes in every image",
    "transfer": "learning the transfer scores",
    PLAYING: "training without the classes that play the target",
    EVIDENCE: "learning how much evidence counts",
    "calibration": "calibrating the confidence",
    "classifiers": "learning classifiers of the source classes",
    "fine-tuned": "re-training on the boxes found",
    "snapped": "moving the boxes to the edges of masks",
    "evaluation": "evaluating",
    "report": "writing the report",
}  # all other stages are methods, or another draw of playing classes; see `title_of`


def title_of(stage: str, settings: RunSettings) -> str:
    """Return the name of a stage in the log; empty if there is nothing to evaluate with.

    The name of a method is added unless the run only localizes, since its user did not choose any method.
    """
    if stage == "evaluation" and settings.data.truth is None and settings.data.scenes is None:
        return ""
    if stage.startswith(PLAYING):
        return TITLES[PLAYING] + stage.removeprefix(PLAYING).replace("-", ", draw ")
    choosing = "choosing a box for every tag"
    localizing = settings.weights is not None and set(settings.methods) <= {"full", "fine-tuned", "snapped"}
    return TITLES.get(stage, choosing if localizing else f"{choosing} ({stage})")


def prepare(run: "Run", folder: Path) -> None:
    """Generate scenes if the settings ask for them; check that source and target fit together."""
    if run.settings.data.scenes is not None:
        scenes = folder / "scenes"
        shutil.rmtree(scenes, ignore_errors=True)
        scenes.mkdir()
        write_scenes(scenes, run.settings.data.scenes, partial(track, what="drawing scenes"))
    shared = sorted(set(run.source[0].classes) & set(run.target.classes)) if run.weights is None else []
    if shared and not run.settings.data.allow_overlap:
        names = ", ".join(repr(name) for name in shared[:5])
        raise InputError(
            f"{len(shared)} classes are in both source and target ({names}); the method transfers to new classes: "
            "remove them from one of the two, or set data.allow_overlap"
        )
    if not run.target.classes:
        raise InputError("no image of the target has a tag, so there is nothing to localize; add tags")
    if run.truth is not None and not len(run.truth[1]):
        raise InputError(
            f"{run.settings.data.truth}: contains no box of a tag in the tagged images, so nothing can be evaluated; "
            "check its image and class names, or remove data.truth"
        )
    for name, images in zip(run.target.classes, run.target.positives, strict=True):
        if not images:
            run.log(f"tag {name!r} has no image and gets no box")
        if len(images) == 1:
            run.log(f"tag {name!r} has only one image, so its box cannot be compared with others")


def train_proposer(run: "Run", folder: Path) -> None:
    """Train the proposer on the source."""
    with tensorboard(folder) as writer:
        train(*run.source, run.settings.proposer, folder, device=run.device, log=run.log, writer=writer, track=_STEPS)


def train_agnostic(run: "Run", folder: Path) -> None:
    """Train the proposer that gives the boxes when features come from another: with a single class, object."""
    settings = run.settings.proposer.model_copy(update={"class_agnostic": True})
    with tensorboard(folder) as writer:
        train(*run.source, settings, folder, device=run.device, log=run.log, writer=writer, track=_STEPS)


def extract_bags(run: "Run", folder: Path) -> None:
    """Extract the bags of the target, and of the source if the run has one."""
    parts = {"target": run.target}
    if run.weights is None:
        chosen = for_transfer(*run.source, run.settings.proposer, run.settings.transfer.images)
        parts = {"source": run.source[0].subset(chosen), "target": run.target}
    for name, part in parts.items():
        kind = "tagged" if name == "target" else "source"
        features, progress = run.model_folder / "proposer", partial(track, what=f"{kind} images", size=len)
        settings = run.settings.extract
        boxes = run.model_folder / AGNOSTIC if settings.agnostic_boxes else features
        if name == "source" and not settings.source_class_features:
            settings = without_class(settings)
        extract(
            part, boxes, folder / name, settings, features_folder=features, device=run.device, executor=run.executor,
            track=progress,
        )  # fmt: skip


def learn_scores(run: "Run", folder: Path) -> None:
    """Learn the transfer scores on the source."""
    learned = learn_source(
        run.source_bags, run.source, run.settings.transfer, device=learning_device(run.device), memory=run.memory
    )
    learned.scores.save(folder)
    write_json(folder / "curve.json", learned.curve)
    draw_curves(folder, [learned.curve or []])


def learn_source_classifiers(run: "Run", folder: Path) -> None:
    """Learn classifiers of the source classes, for the baselines that transfer them."""
    device = learning_device(run.device)
    learned = Learned.load(run.model_folder).to(device)
    learned = learn_classifiers(run.source_bags, run.source, learned, device=device, memory=run.memory)
    assert learned.classifiers is not None
    learned.classifiers.save(folder)


def playing_stages(settings: RunSettings) -> list[str]:
    """The names of the stages that train without the playing classes, one for every draw."""
    draws = settings.evidence.draws if settings.evidence.weights is None else 1
    return [PLAYING, *(f"{PLAYING}-{draw}" for draw in range(2, draws + 1))]


def play(draw: int, run: "Run", folder: Path) -> None:
    """Train a second proposer without a draw of source classes, and extract the bags of their images."""
    settings = run.settings.evidence
    play_target(run.source, settings, _teacher(run), folder, lambda line: run.log(f"  {line}"), draw=draw)


def learn_evidence(run: "Run", folder: Path) -> None:
    """Learn how much each piece of evidence counts, and the confidence, on classes that a second proposer lacks."""
    settings = run.settings
    combination, calibration = weigh_evidence(
        run.source, settings.evidence, _teacher(run), settings.localization,
        [run.folder / name for name in playing_stages(settings)], lambda line: run.log(f"  {line}"),
    )  # fmt: skip
    combination.save(folder)
    if calibration is not None:
        calibration.save(folder)


def _teacher(run: "Run") -> Teacher:
    settings = run.settings
    return Teacher(settings.proposer, settings.extract, settings.transfer, run.device, run.memory, run.log)


def calibrate_confidence(run: "Run", folder: Path) -> None:
    """Fit the calibration of the confidence on playing classes, or take the one that was learned with the evidence."""
    settings, weighs = run.settings, EVIDENCE in run.stages
    if weighs and (run.folder / EVIDENCE / CALIBRATION).is_file():
        copy_file(run.folder / EVIDENCE / CALIBRATION, folder / CALIBRATION)
        return
    calibration = calibrate(
        run.source_bags,
        run.source,
        settings.transfer,
        settings.localization,
        combination=Combination.load(run.folder / EVIDENCE) if weighs else None,
        device=learning_device(run.device),
        memory=run.memory,
    )
    calibration.save(folder)


def run_method(method: str, run: "Run", folder: Path) -> None:
    """Run one method and write its boxes."""
    found = run_localization(run, method, folder)
    write_result(folder, found)
    _log_sharing(run, found)
    run.log(f"  {len(found.boxes)} boxes")


def run_localization(run: "Run", method: str, folder: Path) -> Localization:
    """Run a method with its checkpoints in a folder; if it is finished, only its state is read."""
    return localize_target(
        run.target_bags, run.target, run.learned, METHODS[method].section(run.settings),
        method=method, device=run.learning_device, memory=run.memory, executor=run.executor, checkpoint=folder,
        log=lambda line: run.log(f"  {line}"),
    )  # fmt: skip


def fine_tune(run: "Run", folder: Path) -> None:
    """Re-train the proposer on the boxes of `full`, fold by fold, and select again with its predictions."""
    settings = run.settings.fine_tune
    before = run_localization(run, "full", run.folder / "full")  # finished, so this only reads its state
    boxes = align(*read_boxes(run.folder / "full" / BOXES), run.target)
    start = Proposer.load(run.model_folder / "proposer")
    predictions = fine_tuning.fine_tune(
        run.target, run.target_bags, before, boxes, start, settings, folder, device=run.device,
        log=lambda line: run.log(f"  {line}"),
    )  # fmt: skip
    found, refined = decide(before, predictions, settings, run.settings.localization.boxes, run.learned.calibration)
    all_instances = instances(before, predictions, refined, settings.instance_threshold)
    write_result(folder, found)
    write_boxes(folder / INSTANCES, run.target, all_instances)
    _log_sharing(run, found)
    run.log(f"  {len(found.boxes)} boxes, {len(all_instances)} instances")


def before_snapping(settings: RunSettings) -> str:
    """The method whose boxes are snapped."""
    return "fine-tuned" if "fine-tuned" in settings.methods else "full"


def snap(run: "Run", folder: Path) -> None:
    """Move the boxes of the method before, and its further instances, to the edges of masks."""
    before, settings = run.folder / before_snapping(run.settings), run.settings.snap
    segmenter = load_segmenter(settings, run.device)
    for name in RESULTS:
        if not (before / name).is_file():
            continue
        dataset, boxes = read_boxes(before / name)
        parts = folder / Path(name).stem
        parts.mkdir(exist_ok=True)
        snapped = snap_boxes(
            replace(dataset, folder=run.target.folder), boxes, segmenter, settings, parts, device=run.device,
            log=lambda line: run.log(f"  {line}"),
        )  # fmt: skip
        write_boxes(folder / name, dataset, snapped.boxes)
        if settings.masks and name == BOXES:
            write_masks(folder / MASKS, dataset, snapped)
    for name in (HISTORY, EXPLANATIONS):  # why a box was chosen does not change
        if (before / name).is_file():
            copy_file(before / name, folder / name)
    for name in RESULTS:
        shutil.rmtree(folder / Path(name).stem, ignore_errors=True)


def _log_sharing(run: "Run", found: Localization) -> None:
    if found.sharing.message is not None:
        run.log(f"  {found.sharing.message}")


def evaluate(run: "Run", folder: Path) -> None:
    """Measure CorLoc of every method, if the target has ground truth."""
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
    """Write the report, and collect the files to publish at the top of the run's folder."""
    shutil.rmtree(folder / "images", ignore_errors=True)
    write_report([run], folder / PAGE, beside=folder / "images", link="report/images")
    best = run.folder / run.result_method
    for name in (BOXES, INSTANCES, MASKS):
        if (best / name).is_file():
            copy_file(best / name, folder / name)
    if run.settings.min_confidence:
        write_confident(folder, best / BOXES, run.settings.min_confidence)
    skipped = run.target_bags.unreadable
    if skipped:
        write_text(folder / SKIPPED, "\n".join(skipped) + "\n")
