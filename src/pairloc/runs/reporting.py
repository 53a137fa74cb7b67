"""The report of runs: what their folders hold, gathered for the page and the figures."""

from collections.abc import Sequence
from pathlib import Path

from pairloc.datasets.dataset import Dataset
from pairloc.formats.reading import read_boxes
from pairloc.errors import InputError
from pairloc.evaluation.table import align
from pairloc.io import read_json
from pairloc.runs.run import Run
from pairloc.progress import track
from pairloc.report.figures import write_figures
from pairloc.report.page import MethodResult, write_page


def write_report(runs: Sequence[Run], out: Path, *, embed: int = 300, figures: Path | None = None) -> int:
    """The page of one or more runs on one target, and static figures where asked for; the number of pictures in it."""
    if not runs:
        raise InputError("there is no run to report on")
    dataset = runs[0].target
    methods = [method for run in runs for method in _results(run, dataset, named=len(runs) > 1)]
    truth = None if runs[0].truth is None else runs[0].truth[1]
    if figures is not None:
        write_figures(figures, dataset, methods, truth)
    return write_page(
        out, dataset, methods, truth, embed=embed, ceiling=_ceiling(runs[0]),
        about=f"{', '.join(str(run.folder) for run in runs)}: {len(dataset)} pictures, {len(dataset.classes)} classes",
        track=lambda items, n: track(items, n, "drawing pictures"),
    )  # fmt: skip


def _ceiling(run: Run) -> dict[str, float]:
    """By threshold, the CorLoc the best of a picture's proposals would reach."""
    known: dict[str, float] = read_json(run.folder / "evaluation" / "evaluation.json").get("ceiling", {})
    return {threshold.removeprefix("@"): value for threshold, value in known.items()}


def _results(run: Run, dataset: Dataset, *, named: bool) -> list[MethodResult]:
    """What a run's methods found, under the indices of a data set."""
    file = run.folder / "evaluation" / "evaluation.json"
    if not file.is_file() or any(state != "done" for _, state in run.plan()):
        raise InputError(f"{run.folder}: is not finished; run it to its end first")
    evaluation = read_json(file)
    found = []
    for method in run.settings.methods:
        boxes = align(*read_boxes(run.folder / method / "boxes.json"), dataset)
        history = read_json(run.folder / method / "history.json")["history"]
        name = f"{run.folder.name}: {method}" if named else method
        corloc, seconds = evaluation["methods"].get(method, {}), evaluation["seconds"].get(method)
        found.append(MethodResult(name, boxes, corloc, seconds, history))
    return found
