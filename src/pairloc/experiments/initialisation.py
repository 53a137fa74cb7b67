"""The initialisation experiment of the paper: energy, CorLoc and time of ICM from different starts."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pairloc.bags.store import BagStore
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.evaluation.corloc import corloc, localized
from pairloc.inference.class_icm import Step
from pairloc.inference.class_problem import ClassProblem
from pairloc.inference.full_graph import class_block_icm, class_mean_field
from pairloc.io import write_bytes, write_text
from pairloc.localization.engine import warm_up_problems
from pairloc.localization.learned import Learned
from pairloc.localization.result import scored_boxes
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


class InitialisationStudy:
    """The warm-up problems of all classes of a target, to be solved in different ways.

    `dataset` and `truth` are the target's images, or those at `indices` of the store. `log` receives a line for every
    measured point.
    """

    def __init__(
        self,
        store: BagStore,
        dataset: Dataset,
        truth: GroundTruth,
        learned: Learned,
        settings: LocalizationSettings,
        *,
        indices: Sequence[int] | None = None,
        device: str = "cpu",
        memory: int = 8 << 30,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.dataset, self.truth, self.settings, self.log = dataset, truth, settings, log
        self.target, self.problems = warm_up_problems(
            store, dataset, learned, settings, indices=indices, device=device, memory=memory
        )

    def starts(self, epochs: int = 4) -> list[Point]:
        """Run ICM from every start; return one point per start and epoch, summed over the classes."""
        points = []
        for start in STARTS:
            histories = [
                () if problem is None else self._solve(problem, start, label, epochs)
                for label, problem in enumerate(self.problems)
            ]
            points += self._measure(start, histories, epochs + 1)
        return points

    def full_graph(self, most: int, epochs: int = 10) -> list[Point]:
        """Run ICM, block ICM and mean field on the whole graph of every class of at most `most` bags.

        Both kinds of ICM start from mini-problems, whose time counts; mean field needs no start. Returns one point per
        algorithm and epoch, with the CorLoc of these classes.
        """
        histories: dict[str, list[tuple[Step, ...]]] = {"ICM": [], "block ICM": [], "mean field": []}
        for label, problem in enumerate(self.problems):
            icm: tuple[Step, ...] = ()
            block_icm, mean_field = icm, icm
            if problem is not None and len(problem) <= most:
                icm = self._solve(problem, f"K={self.settings.solver.k}", label, epochs)
                block_icm = tuple(
                    replace(step, seconds=step.seconds + icm[0].seconds)
                    for step in class_block_icm(problem, icm[0].selection, epochs)
                )
                mean_field = class_mean_field(problem, epochs)
            for history, steps in zip(histories.values(), (icm, block_icm, mean_field), strict=True):
                history.append(steps)
        return [point for name, history in histories.items() for point in self._measure(name, history, epochs + 1)]

    def _solve(self, problem: ClassProblem, start: str, label: int, epochs: int) -> tuple[Step, ...]:
        """Make the start of a class and run ICM from it; return the state after every epoch until it converges.

        The times are those of the solver alone: nothing is measured in between.
        """
        options: dict[str, Any] = {
            "seed": self.settings.seed + label, "iterations": self.settings.solver.iterations, "epochs": epochs,
        }  # fmt: skip
        if start.startswith("K="):
            return problem.solve(k=int(start[2:]), **options).history
        if start == "whole image":
            overlap = self.target.bags.frame_overlap(self.target.positives[label])
            return problem.solve(overlap.masked_fill(problem.unary == -torch.inf, -1).argmax(dim=1), **options).history
        return problem.solve({"objectness": "unary"}.get(start, start), **options).history

    def _measure(self, name: str, histories: Sequence[Sequence[Step]], epochs: int) -> list[Point]:
        """Measure the states of all classes that have a history; a class that converged keeps its last state."""
        points: list[Point] = []
        target, empty = self.target, torch.zeros(0, dtype=torch.int64)
        for epoch in range(epochs if any(histories) else 0):
            steps = [history[min(epoch, len(history) - 1)] if history else None for history in histories]
            selection = tuple(empty if step is None else step.selection for step in steps)
            bags = tuple(
                empty if step is None else positives for step, positives in zip(steps, target.positives, strict=True)
            )
            boxes = tuple(
                torch.zeros(0, 4) if step is None else target.selected_boxes(selection, label)
                for label, step in enumerate(steps)
            )
            confidence = tuple(torch.ones(len(entry), dtype=torch.float64) for entry in selection)
            result = localized(self.dataset, scored_boxes(bags, boxes, confidence), self.truth)
            measured = [tag for tag, step in zip(target.classes, steps, strict=True) if step is not None]
            per_class = [corloc(result, threshold, draws=1).per_class for threshold in (0.5, 0.7)]
            corlocs = [float(np.mean([values[tag] for tag in measured if tag in values])) for values in per_class]
            energy, seconds = (sum(getattr(s, what) for s in steps if s is not None) for what in ("energy", "seconds"))
            points.append(Point(name, epoch, seconds, energy, *corlocs))
            self.log(f"{name}, epoch {epoch}: CorLoc@0.5 {100 * corlocs[0]:.1f}, energy {energy:.1f}, {seconds:.1f} s")
        return points


def write_points(points: list[Point], file: Path) -> None:
    """Write the points as CSV."""
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, list(Point.__dataclass_fields__))
    writer.writeheader()
    writer.writerows(asdict(point) for point in points)
    write_text(file, table.getvalue())


def write_study(points: list[Point], folder: Path) -> None:
    """Write the points as `init.csv` and the three plots of the paper as `init.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator, NullLocator

    write_points(points, folder / "init.csv")
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
    right.margins(x=0.25, y=0.15)
    for axis in (left.xaxis, middle.xaxis, right.yaxis):  # seconds, also where they span less than a decade
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
    for axis in (left.xaxis, middle.xaxis, right.xaxis, right.yaxis):
        axis.set_minor_locator(NullLocator())
    right.set_title("CorLoc@0.5 before ICM", fontsize=9)
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=120)
    write_bytes(folder / "init.png", stream.getvalue())
    pyplot.close(figure)
