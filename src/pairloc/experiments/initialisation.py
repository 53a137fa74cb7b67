"""The initialisation experiment of the paper: energy, CorLoc and time of ICM from different starts."""

import csv
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pairloc.bags.store import BagStore
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.evaluation.corloc import corloc, localized
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
        selection: list[Tensor] = [torch.zeros(0, dtype=torch.int64) for _ in target.positives]
        seconds = 0.0
        for epoch in range(epochs + 1):
            energy, before = 0.0, time.perf_counter()
            for label, problem in enumerate(problems):
                if problem is not None:
                    state = selection[label] if epoch else None
                    selection[label], class_energy = _step(problem, start, state, target, label, settings)
                    energy += class_energy
            seconds += time.perf_counter() - before
            chosen = tuple(selection)
            boxes = tuple(target.selected_boxes(chosen, label) for label in range(len(target.classes)))
            confidence = tuple(torch.ones(len(entry), dtype=torch.float64) for entry in chosen)
            result = localized(dataset, scored_boxes(target.positives, boxes, confidence), truth)
            corlocs = [corloc(result, threshold, draws=1).mean for threshold in (0.5, 0.7)]
            points.append(Point(start, epoch, seconds, energy, *corlocs))
            log(f"{start}, epoch {epoch}: CorLoc@0.5 {100 * corlocs[0]:.1f}, energy {energy:.1f}, {seconds:.1f} s")
    return points


def _step(
    problem: ClassProblem, start: str, state: Tensor | None, target: Target, label: int, settings: LocalizationSettings
) -> tuple[Tensor, float]:
    """Make the start, or one epoch of ICM from a state; return the selection and energy of a class."""
    options: dict[str, Any] = {"seed": settings.seed + label, "iterations": settings.solver.iterations}
    if state is not None:
        solution = problem.solve(state, epochs=1, **options)
    elif start.startswith("K="):
        solution = problem.solve(k=int(start[2:]), epochs=0, **options)
    elif start == "whole image":
        solution = problem.solve(_largest(target, label, problem.unary), epochs=0, **options)
    else:
        solution = problem.solve({"objectness": "unary"}.get(start, start), epochs=0, **options)
    return solution.selection.cpu(), solution.energy


def _largest(target: Target, label: int, unary: Tensor) -> Tensor:
    """Select the largest allowed proposal of every bag (M,): the whole image, if it is one."""
    boxes = target.boxes(label)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1)
    return area.masked_fill(unary == -torch.inf, -1).argmax(dim=1)


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
