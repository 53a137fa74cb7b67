"""Collects the results of runs from their folders and writes the page and the figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.evaluation.table import Evaluation, align
from pairloc.formats.reading import read_boxes
from pairloc.io import read_model
from pairloc.localization.methods import METHODS
from pairloc.progress import track
from pairloc.report.figures import write_figures
from pairloc.report.outlines import read_outlines
from pairloc.report.page import MethodResult, is_plain, write_page
from pairloc.report.reasons import read_reasons
from pairloc.settings import RunSettings


class Finished(Protocol):
    """The part of a finished run that a report needs."""

    folder: Path
    settings: RunSettings

    @property
    def target(self) -> Dataset:
        """The tagged images."""

    @property
    def truth(self) -> tuple[Dataset, GroundTruth] | None:
        """The ground truth of the target, if there is one, with its own data set."""

    @property
    def result_method(self) -> str:
        """The method whose boxes are the result of the run."""

    @property
    def evaluation(self) -> Evaluation:
        """CorLoc and time of every method."""


class HistoryStep(BaseModel):
    """A half step of a method's loop: a re-training or a re-localization."""

    model_config = ConfigDict(frozen=True)
    round: int
    step: str
    objective: float | None = None
    changed: int  # boxes that changed


class History(BaseModel):
    """The steps of a method, as in its `history.json`."""

    model_config = ConfigDict(frozen=True)
    history: tuple[HistoryStep, ...]


def write_report(
    runs: Sequence[Finished],
    out: Path,
    *,
    embed: int = 300,
    figures: Path | None = None,
    beside: Path | None = None,
    link: str | None = None,
) -> int:
    """Write the page of one or more runs on the same target; returns the number of images in it.

    Static figures go into the folder `figures`, if given. See `write_page` for `embed`, `beside` and `link`. Raises
    InputError if `runs` is empty.
    """
    if not runs:
        raise InputError("there is no run to report on; name the folder of at least one run")
    dataset = runs[0].target
    methods = [method for run in runs for method in _results(run, dataset, named=len(runs) > 1)]
    truth = None if runs[0].truth is None else runs[0].truth[1]
    if figures is not None:
        write_figures(figures, dataset, methods, truth)
    ceiling = {threshold.removeprefix("@"): value for threshold, value in runs[0].evaluation.ceiling.items()}
    names = ", ".join(run.folder.resolve().name for run in runs)
    kinds = "tags" if is_plain(methods, truth) else "classes"
    return write_page(
        out, dataset, methods, truth, embed=embed, ceiling=ceiling, beside=beside, link=link,
        about=f"{names}: {len(dataset)} images, {len(dataset.classes)} {kinds}",
        track=lambda items, n: track(items, n, "drawing images"),
    )  # fmt: skip


def _results(run: Finished, dataset: Dataset, *, named: bool) -> list[MethodResult]:
    """The results of a run's methods, under the indices of `dataset`; `named` puts the run into their names."""
    evaluation, results = run.evaluation, []
    for method in _compared(run, alone=not named):
        boxes = align(*read_boxes(run.folder / method / "boxes.json"), dataset)
        steps: list[dict[str, Any]] = [
            step.model_dump() for step in read_model(run.folder / method / "history.json", History).history
        ]
        name = f"{run.folder.name}: {method}" if named else method
        corloc = {threshold: entry.model_dump() for threshold, entry in evaluation.methods.get(method, {}).items()}
        tag = METHODS[method].short if method in METHODS else ""
        least = run.settings.min_confidence if method == run.result_method else 0.0
        reasons = read_reasons(run.folder / method, run.target, dataset)
        outlines = read_outlines(run.folder / method, run.target, dataset)
        seconds = evaluation.seconds.get(method)
        results.append(MethodResult(name, boxes, corloc, seconds, steps, tag, least, reasons, outlines))
    return results


def _compared(run: Finished, *, alone: bool) -> tuple[str, ...]:
    """The methods to show.

    `fine-tuned` and `snapped` continue `full`, so a single run of them shows only its final boxes if there is no ground
    truth to compare them with.
    """
    methods = run.settings.methods
    only_final = alone and run.truth is None and set(methods) <= {"full", "fine-tuned", "snapped"}
    return (run.result_method,) if only_final else methods
