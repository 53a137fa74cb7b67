"""The paper's initialisation experiment: where ICM ends by where it starts, and what that costs."""

import csv
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.evaluation.corloc import corloc, localized
from pairloc.evaluation.table import align
from pairloc.inference.relocalize import PairScores, relocalize
from pairloc.localization.functions import TransferScores
from pairloc.localization.problems import mixed_scores
from pairloc.localization.target import Target, selected_boxes
from pairloc.settings import LearningSettings

STARTS = ("random", "objectness", "whole image", "K=2", "K=4", "K=8", "K=64")


@dataclass(frozen=True)
class Point:
    """The state of all classes after a start (epoch 0) or an epoch of ICM."""

    start: str
    epoch: int
    seconds: float
    energy: float
    corloc50: float
    corloc70: float


def study_init(
    target: Target,
    transfer: TransferScores,
    settings: LearningSettings,
    truth: tuple[Dataset, GroundTruth],
    *,
    epochs: int = 4,
    say: Callable[[str], None] = lambda line: None,
) -> list[Point]:
    """Warm-up re-localization from every start, epoch by epoch."""
    points = []
    dataset = target.transfer.store.dataset.subset(target.transfer.indices)
    problems = [
        mixed_scores(target, transfer, None, label, settings) if len(bags) else None
        for label, bags in enumerate(target.positives)
    ]
    for start in STARTS:
        selection: list[Tensor] = [torch.zeros(0, dtype=torch.int64) for _ in target.positives]
        seconds = 0.0
        for epoch in range(epochs + 1):
            energy, before = 0.0, time.perf_counter()
            for label, problem in enumerate(problems):
                if problem is not None:
                    state = selection[label] if epoch else None
                    selection[label], own = _turn(problem, start, state, target, label, settings)
                    energy += own
            seconds += time.perf_counter() - before
            found = align(dataset, selected_boxes(target, tuple(selection)), truth[0])
            result = localized(truth[0], found, truth[1])
            at = [corloc(result, threshold, draws=1).mean for threshold in (0.5, 0.7)]
            points.append(Point(start, epoch, seconds, energy, *at))
            say(f"{start}, epoch {epoch}: CorLoc@0.5 {100 * at[0]:.1f}, energy {energy:.1f}, {seconds:.1f} s")
    return points


def _turn(
    problem: tuple[Tensor, PairScores],
    start: str,
    state: Tensor | None,
    target: Target,
    label: int,
    settings: LearningSettings,
) -> tuple[Tensor, float]:
    """The start, or one epoch of ICM from a state: selection and energy of a class."""
    unary, pairs = problem
    options: dict[str, Any] = {
        "alpha": settings.alpha,
        "alpha_scale": settings.alpha_scale,
        "seed": settings.seed + label,
    }
    if state is not None:
        found = relocalize(unary, pairs, init=state.to(unary.device), epochs=1, **options)
    elif start.startswith("K="):
        found = relocalize(unary, pairs, k=int(start[2:]), iterations=settings.iterations, epochs=0, **options)
    elif start == "whole image":
        found = relocalize(unary, pairs, init=_largest(target, label, unary), epochs=0, **options)
    else:
        found = relocalize(unary, pairs, init={"objectness": "unary"}.get(start, start), epochs=0, **options)
    return found.selection.cpu(), found.energy


def _largest(target: Target, label: int, unary: Tensor) -> Tensor:
    """The largest proposal that may be selected, which is the whole image where that may: (M,)."""
    boxes = target.transfer.boxes[target.positives[label].to(target.transfer.device)]
    area = (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1)
    return area.masked_fill(unary == -torch.inf, -1).argmax(dim=1)


def write_study(points: list[Point], folder: Path) -> None:
    """The points as `init.csv` and the paper's three plots as `init.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "init.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(Point.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(asdict(point) for point in points)
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    lowest = min(point.energy for point in points)
    for start in STARTS:
        own = [point for point in points if point.start == start]
        seconds = [max(point.seconds, 1e-3) for point in own]
        left.plot(seconds, [100 * point.corloc50 for point in own], marker="o", markersize=4, label=start)
        middle.plot(seconds, [point.energy - lowest + 1 for point in own], marker="o", markersize=4, label=start)
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
    figure.savefig(folder / "init.png", dpi=120)
    pyplot.close(figure)
