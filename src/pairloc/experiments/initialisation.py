"""The initialisation experiment of the paper: energy, CorLoc and time of ICM from different starts."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pairloc.bags.store import BagStore
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.evaluation.corloc import corloc, localized
from pairloc.inference.class_icm import Step
from pairloc.inference.class_problem import ClassProblem
from pairloc.io import write_bytes, write_text
from pairloc.localization.class_view import ClassView
from pairloc.localization.learned import Learned
from pairloc.localization.result import scored_boxes
from pairloc.localization.target import Target
from pairloc.settings import LocalizationSettings

STARTS = ("random", "objectness", "whole image", "K=2", "K=4", "K=8", "K=64")


@dataclass(frozen=True)
class Point:
    """Measurements over all classes after the start (epoch 0) or after an epoch of ICM."""

    start: str
    epoch: int
    seconds: float
    energy: float
    corloc50: float
    corloc70: float


def study_init(
    store: BagStore,
    dataset: Dataset,
    truth: GroundTruth,
    learned: Learned,
    settings: LocalizationSettings,
    *,
    indices: Sequence[int] | None = None,
    device: str = "cpu",
    memory: int = 8 << 30,
    epochs: int = 4,
    log: Callable[[str], None] = lambda line: None,
) -> list[Point]:
    """Measure the warm-up re-localization of all classes from every start, epoch by epoch.

    `dataset` and `truth` are the target's images, or those at `indices` of the store. Returns one point per start and
    epoch.
    """
    target = Target.from_store(
        store, dataset, learned.scores, settings.features, indices=indices, device=device, memory=memory
    )
    problems = [
        ClassView(target, learned.scores, label, settings).problem(None) if len(bags) else None
        for label, bags in enumerate(target.positives)
    ]
    points = []
    for start in STARTS:
        histories = [
            () if problem is None else _solve(problem, start, target, label, settings, epochs)
            for label, problem in enumerate(problems)
        ]
        for epoch in range(epochs + 1):
            steps = [history[min(epoch, len(history) - 1)] if history else None for history in histories]
            empty = torch.zeros(0, dtype=torch.int64)
            selection = tuple(empty if step is None else step.selection for step in steps)
            seconds = sum(step.seconds for step in steps if step is not None)
            energy = sum(step.energy for step in steps if step is not None)
            boxes = tuple(target.selected_boxes(selection, label) for label in range(len(target.classes)))
            confidence = tuple(torch.ones(len(entry), dtype=torch.float64) for entry in selection)
            result = localized(dataset, scored_boxes(target.positives, boxes, confidence), truth)
            corlocs = [corloc(result, threshold, draws=1).mean for threshold in (0.5, 0.7)]
            points.append(Point(start, epoch, seconds, energy, *corlocs))
            log(f"{start}, epoch {epoch}: CorLoc@0.5 {100 * corlocs[0]:.1f}, energy {energy:.1f}, {seconds:.1f} s")
    return points


def _solve(
    problem: ClassProblem, start: str, target: Target, label: int, settings: LocalizationSettings, epochs: int
) -> tuple[Step, ...]:
    """Make the start of a class and run ICM from it; return the state after every epoch, which stays once it converges.

    The times are those of the solver alone: nothing is measured in between.
    """
    options: dict[str, Any] = {
        "seed": settings.seed + label, "iterations": settings.solver.iterations, "epochs": epochs,
    }  # fmt: skip
    if start.startswith("K="):
        return problem.solve(k=int(start[2:]), **options).history
    if start == "whole image":
        overlap = target.frame_overlap(target.positives[label]).masked_fill(problem.unary == -torch.inf, -1)
        return problem.solve(overlap.argmax(dim=1), **options).history
    return problem.solve({"objectness": "unary"}.get(start, start), **options).history


def write_study(points: list[Point], folder: Path) -> None:
    """Write the points as `init.csv` and the three plots of the paper as `init.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(Point.__dataclass_fields__))
    writer.writeheader()
    writer.writerows(asdict(point) for point in points)
    write_text(folder / "init.csv", table.getvalue())
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    lowest = min(point.energy for point in points)
    for start in STARTS:
        of_start = [point for point in points if point.start == start]
        seconds = [max(point.seconds, 1e-3) for point in of_start]
        left.plot(seconds, [100 * point.corloc50 for point in of_start], marker="o", markersize=4, label=start)
        middle.plot(seconds, [point.energy - lowest + 1 for point in of_start], marker="o", markersize=4, label=start)
    left.set(xlabel="seconds", ylabel="CorLoc@0.5 (%)", xscale="log")
    middle.set(xlabel="seconds", ylabel="energy above the lowest found, + 1", xscale="log", yscale="log")
    left.legend(fontsize=8)
    sizes = [point for point in points if point.epoch == 0 and point.start.startswith("K=")]
    right.plot([int(p.start[2:]) for p in sizes], [p.seconds for p in sizes], marker="o", color="black")
    for point in sizes:
        text = f"{100 * point.corloc50:.1f}%"
        right.annotate(text, (int(point.start[2:]), point.seconds), textcoords="offset points", xytext=(8, -10))
    right.set(xlabel="K, bags of a mini-problem", ylabel="seconds of the start", xscale="log", yscale="log")
    right.set_xticks([int(p.start[2:]) for p in sizes], labels=[p.start[2:] for p in sizes])
    right.minorticks_off()
    right.margins(x=0.25, y=0.15)
    right.set_title("CorLoc@0.5 before ICM", fontsize=9)
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120)
    write_bytes(folder / "init.png", stream.getvalue())
    pyplot.close(figure)
