"""The files of results: what a method writes, and what a run publishes at the top of its folder."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairloc.formats.coco import write_boxes
from pairloc.formats.csv import write_table
from pairloc.formats.reading import read_boxes
from pairloc.io import write_json
from pairloc.localization.descent import Curve
from pairloc.localization.explained import write_explanations
from pairloc.localization.result import Localization
from pairloc.report.outlines import FILE as MASKS

if TYPE_CHECKING:
    from pairloc.runs.run import Run

BOXES, INSTANCES, HISTORY, PAGE, SKIPPED = "boxes.json", "instances.json", "history.json", "report.html", "skipped.txt"
LOW_CONFIDENCE = "low-confidence.csv"  # boxes left out of the published ones
RESULTS = (BOXES, INSTANCES)  # files of a method that later stages use
PUBLISHED = (BOXES, INSTANCES, MASKS, LOW_CONFIDENCE, PAGE, SKIPPED)


def write_result(folder: Path, found: Localization) -> None:
    """Write the boxes of a method with their confidence, what explains them, its history and its training curves."""
    write_boxes(folder / BOXES, found.dataset, found.boxes)
    write_explanations(folder, found)
    history = [vars(step) for step in found.history]
    facts = {"converged": found.converged, "n_iter": found.n_iter, "curves": found.curves}
    write_json(folder / HISTORY, {"history": history, **facts})
    draw_curves(folder, found.curves)


def write_confident(folder: Path, file: Path, least: float) -> None:
    """Write the boxes of a file into a folder, those of lower confidence than `least` into a table of their own."""
    dataset, boxes = read_boxes(file)
    low = boxes.score < least
    if low.any():
        write_boxes(folder / BOXES, dataset, boxes.where(~low))
        write_table(folder / LOW_CONFIDENCE, dataset, boxes.where(low))


def left_out(run: "Run") -> tuple[int, int]:
    """Return how many boxes of a finished run were left out for their low confidence, and how many there are."""
    if not run.settings.min_confidence:
        return 0, 0
    _, boxes = read_boxes(run.folder / run.result_method / BOXES)
    return int((boxes.score < run.settings.min_confidence).sum()), len(boxes)


@contextmanager
def tensorboard(folder: Path) -> Iterator[Any]:
    """Yield a TensorBoard writer, or None if TensorBoard is not installed (`pip install pairloc[tensorboard]`)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield None
        return
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        yield writer


def draw_curves(folder: Path, curves: Sequence[Curve]) -> None:
    """Write training curves for TensorBoard, one after the other; exactly fitted scores have none."""
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    if not any(curves):
        return
    steps_so_far = 0
    with tensorboard(folder) as writer:
        for curve in curves if writer is not None else ():
            for row in curve:
                for name in ("loss", "held-out loss"):
                    writer.add_scalar(f"{folder.name}/{name}", row[name], steps_so_far + row["step"])
            steps_so_far += int(curve[-1]["step"]) if curve else 0
