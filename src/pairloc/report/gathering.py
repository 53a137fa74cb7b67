"""The report of runs: what their folders hold, gathered for the page and the figures."""

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
from pairloc.report.page import MethodResult, is_plain, write_page
from pairloc.settings import RunSettings


class Finished(Protocol):
    """What a report needs of a run."""

    folder: Path
    settings: RunSettings

    @property
    def target(self) -> Dataset:
        """Its tagged images."""

    @property
    def truth(self) -> tuple[Dataset, GroundTruth] | None:
        """Their boxes, where they are known."""

    @property
    def result_method(self) -> str:
        """The method whose boxes are the run's."""

    @property
    def evaluation(self) -> Evaluation:
        """Its CorLoc."""


class Step(BaseModel):
    """A half step of a method's loop."""

    model_config = ConfigDict(frozen=True)
    round: int
    step: str
    objective: float | None = None
    changed: int


class History(BaseModel):
    """How a method came to its boxes."""

    model_config = ConfigDict(frozen=True)
    history: tuple[Step, ...]


def write_report(
    runs: Sequence[Finished],
    out: Path,
    *,
    embed: int = 300,
    figures: Path | None = None,
    beside: Path | None = None,
    link: str | None = None,
) -> int:
    """The page of one or more runs on one target, and static figures where asked for; the number of images in it.

    Images beyond the first `embed` go into the folder `beside`, which the page calls `link`.
    """
    if not runs:
        raise InputError("there is no run to report on")
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
    """What a run's methods found, under the indices of a data set."""
    evaluation, found = run.evaluation, []
    for method in _compared(run, alone=not named):
        boxes = align(*read_boxes(run.folder / method / "boxes.json"), dataset)
        steps: list[dict[str, Any]] = [
            step.model_dump() for step in read_model(run.folder / method / "history.json", History).history
        ]
        name = f"{run.folder.name}: {method}" if named else method
        corloc = {threshold: entry.model_dump() for threshold, entry in evaluation.methods.get(method, {}).items()}
        tag = METHODS[method].short if method in METHODS else ""
        found.append(MethodResult(name, boxes, corloc, evaluation.seconds.get(method), steps, tag))
    return found


def _compared(run: Finished, *, alone: bool) -> tuple[str, ...]:
    """The methods to show. `fine-tuned` continues `full`: without a truth, a single run shows only its final boxes."""
    methods = run.settings.methods
    steps = alone and run.truth is None and set(methods) <= {"full", "fine-tuned"}
    return (run.result_method,) if steps else methods
