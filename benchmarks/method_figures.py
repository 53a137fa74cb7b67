"""`.venv/bin/python benchmarks/method_figures.py RUN` draws the figures that explain the method into docs/figures.

RUN is the folder of a finished `pairloc demo`. The package computes all scores, energies and boxes; each function's
docstring gives the rule that selects its example. Blue boxes are right (IoU > 0.5 with the tagged object), dashed
orange boxes are wrong.
"""

import argparse
import io
import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor
from torchvision.ops import nms

from pairloc.boxes import iou
from pairloc.evaluation.corloc import corloc, localized
from pairloc.images import open_image
from pairloc.inference.class_problem import ClassProblem
from pairloc.inference.mini_problems import partition
from pairloc.io import write_bytes
from pairloc.localization.class_view import ClassView
from pairloc.localization.engine import localize_target
from pairloc.localization.target import Target
from pairloc.runs.run import open_run

RIGHT, WRONG, OTHER, FAINT, INK = "#0072B2", "#D55E00", "#666666", "#F2F2F2", "#222222"
PAIR_COLOURS = LinearSegmentedColormap.from_list("pair scores", ["#CFCFCF", "#B58ABF", "#5E1A78"])
DASHES = (0, (3, 1))
LEVELS = (-4, -1, 1)  # pair scores in the legend
K, DRAWN, RANDOM_STARTS, COLUMNS = 4, 25, 10, 5  # bags of the mini-problem; proposals of the bag; ...; images in a row


class Material:
    """The target of a run, the warm-up problem of every class, and which proposals are right."""

    def __init__(self, folder: Path) -> None:
        self.run = open_run(folder)
        _, self.dataset, self.truth = self.run.sample(None)
        self.settings, scores = self.run.settings.localization, self.run.learned.scores
        self.target = Target.from_store(self.run.target_bags, self.dataset, scores, self.settings.features)
        labels = range(len(self.dataset.classes))
        self.problems = [ClassView(self.target, scores, label, self.settings).problem(None) for label in labels]
        self.right = [self._right(label) for label in labels]  # (M, B) per class

    def _right(self, label: int) -> Tensor:
        found = []
        for image, boxes in zip(self.target.positives[label].tolist(), self.target.boxes(label), strict=True):
            true = self.truth.boxes[(self.truth.image == image) & (self.truth.label == label) & ~self.truth.ignored]
            found.append((iou(boxes, torch.from_numpy(true).float()) > 0.5).any(dim=1))
        return torch.stack(found)

    def show(self, figure: Figure, place: tuple[float, float, float, float], label: int, row: int) -> Axes:
        """Draw the image of a bag."""
        image = open_image(self.dataset.path(int(self.target.positives[label][row])))
        axes = figure.add_axes(place)
        axes.imshow(np.asarray(image), interpolation="bicubic", extent=(0, image.width, image.height, 0))
        axes.set_axis_off()
        return axes

    def draw(self, axes: Axes, label: int, row: int, proposal: int, width: float = 3, colour: str = "") -> Rectangle:
        """Draw a proposal of a bag, by default in the colour of a right or a wrong box."""
        x1, y1, x2, y2 = self.target.boxes(label)[row, proposal].tolist()
        colour = colour or (RIGHT if self.right[label][row, proposal] else WRONG)
        halo = [withStroke(linewidth=width + 2, foreground="white")] if width > 1 else []
        look: Any = {"ec": colour, "lw": width, "ls": DASHES if colour == WRONG else "-", "path_effects": halo}
        box = Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, **look)
        axes.add_patch(box)
        return box


class MiniProblem(NamedTuple):
    """K bags of a class, the selection that solving them together gives, and their most object-like proposals."""

    label: int
    rows: Tensor  # (K,)
    problem: ClassProblem
    together: Tensor  # (K,)
    alone: Tensor  # (K,)


def largest_gain(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """The class with the largest gain; among equals the one that started lowest."""
    return max(after, key=lambda name: (round(after[name] - before[name], 6), -before[name]))


def choose_mini_problem(material: Material) -> MiniProblem:
    """In the class that pair scores help most: it corrects most boxes, and among those it saves most energy."""
    methods = material.run.evaluation.methods
    name = largest_gain(methods["warm-up-unary"]["0.5"].per_class, methods["warm-up"]["0.5"].per_class)
    label = material.dataset.classes.index(name)
    whole, right, found = material.problems[label], material.right[label], []
    for rows in map(torch.from_numpy, partition(len(whole), K, material.settings.seed)):
        if len(rows) == K:
            weight: Any = {"alpha": whole.alpha, "alpha_scale": whole.alpha_scale}
            problem = ClassProblem(whole.unary[rows], whole.pairs, bags=rows, **weight)
            together, alone = problem.solve(k=K, epochs=0).selection, problem.unary.argmax(dim=1)
            corrected = int(right[rows, together].sum() - right[rows, alone].sum())
            saved = problem.energy(alone) - problem.energy(together)
            found.append((corrected, saved, MiniProblem(label, rows, problem, together, alone)))
    return max(found, key=lambda entry: entry[:2])[2]


def draw_bag(material: Material, mini: MiniProblem) -> Figure:
    """The bag of the mini-problem in which another proposal outscores the tagged object most."""
    label, unary = mini.label, mini.problem.unary
    of_object = unary.masked_fill(~material.right[label][mini.rows], -torch.inf)  # (K, B)
    lead = unary.amax(dim=1) - of_object.amax(dim=1)
    place = int(lead.masked_fill(lead.isinf(), -1).argmax())
    row, best = int(mini.rows[place]), unary[place].argsort(descending=True)[:DRAWN].tolist()
    marked = {
        best[0]: ("", "most object-like proposal"),
        int(of_object[place].argmax()): ("", f"the tagged object: {material.dataset.classes[label]}"),
        best[-1]: (OTHER, "a less object-like proposal"),
    }
    figure = pyplot.figure(figsize=(11, 6.2))
    whole = material.show(figure, (0.01, 0.13, 0.484, 0.86), label, row)
    for proposal in best:
        material.draw(whole, label, row, proposal, 1, FAINT)
    for number, (proposal, (colour, text)) in enumerate(marked.items()):
        material.draw(whole, label, row, proposal, 3, colour)
        crop = material.show(figure, (0.53, 0.72 - 0.295 * number, 0.15, 0.26), label, row)
        box = material.draw(crop, label, row, proposal, 4, colour)
        box.set_clip_on(False)
        crop.set(xlim=(box.get_x(), box.get_x() + box.get_width()), ylim=(box.get_y() + box.get_height(), box.get_y()))
        score, ink = f"{unary[place, proposal]:+.1f}", box.get_edgecolor()
        write(figure, 0.7, 0.86 - 0.295 * number, score, 26, weight="bold", color=ink)
        write(figure, 0.7, 0.81 - 0.295 * number, text)
    write(figure, 0.01, 0.07, "a bag: all proposals of one image", 17, weight="bold")
    write(figure, 0.01, 0.025, f"the {len(best)} most object-like of {int(unary[place].isfinite().sum())} are drawn")
    write(figure, 0.53, 0.07, "unary score: looks like an object", 17, weight="bold")
    return figure


def draw_pair_scores(material: Material, mini: MiniProblem) -> Figure:
    """The two bags of the mini-problem with the highest pair score, preferably of two right proposals."""
    right, whole, found = material.right[mini.label], material.problems[mini.label], []
    for left, other in combinations(mini.rows.tolist(), 2):
        scores = pair_scores(whole, left, other)
        a, b = divmod(int(scores.argmax()), scores.shape[1])
        both_right = bool(right[left, a] and right[other, b])
        found.append((both_right, float(scores[a, b]), ((left, a), (other, b)), scores))
    shown_right, highest, ends, scores = max(found, key=lambda entry: entry[:2])
    figure, drawn = pyplot.figure(figsize=(11, 5.9)), []
    for side, (row, best) in enumerate(ends):
        axes = material.show(figure, (0.01 + 0.57 * side, 0.16, 0.41, 0.765), mini.label, row)
        shown = distinct(material.target.boxes(mini.label)[row], whole.unary[row], best)
        drawn.append({p: material.draw(axes, mini.label, row, p, 3, "" if p == best else OTHER) for p in shown})
    figure.canvas.draw()
    for score, a, b in sorted((float(scores[a, b]), a, b) for a in drawn[0] for b in drawn[1]):
        draw_pair(figure, drawn[0][a], drawn[1][b], score, 0.5 if score == highest else None)
    title = f"two images with the tag \u201c{material.dataset.classes[mini.label]}\u201d"
    write(figure, 0.01, 0.95, title + (": the best pair shows it" if shown_right else ""), 17, weight="bold")
    pair_legend(figure, "lower center")
    return figure


def draw_mini_problem(material: Material, mini: MiniProblem) -> Figure:
    """The selection of the mini-problem beside the most object-like proposals of the same bags."""
    figure, name = pyplot.figure(figsize=(11, 7)), material.dataset.classes[mini.label]
    titles = {f"{K} bags solved together": mini.together, "most object-like of each bag": mini.alone}
    for half, (title, selection) in enumerate(titles.items()):
        left, boxes = 0.01 + 0.505 * half, []
        for place, (row, proposal) in enumerate(zip(mini.rows.tolist(), selection.tolist(), strict=True)):
            corner = left + 0.265 * (place % 2), 0.51 - 0.385 * (place // 2)
            axes = material.show(figure, (*corner, 0.21, 0.33), mini.label, row)
            boxes.append(material.draw(axes, mini.label, row, proposal))
        figure.canvas.draw()
        for i, j in combinations(range(K), 2):
            scores = pair_scores(material.problems[mini.label], int(mini.rows[i]), int(mini.rows[j]))
            at = 0.5 if i + j != K - 1 else 0.3  # the diagonals cross in the middle
            draw_pair(figure, boxes[i], boxes[j], float(scores[selection[i], selection[j]]), at)
        terms = mini.problem.objective_terms(selection)
        write(figure, left, 0.955, f"\u201c{name}\u201d: {title}", 16, weight="bold")
        write(figure, left, 0.885, f"energy {-sum(terms):+.1f}", 22, weight="bold")
        write(figure, left + 0.245, 0.905, f"unary scores {terms.unary:+.1f}", 13)
        write(figure, left + 0.245, 0.87, f"weighted pair scores {terms.pairs:+.1f}", 13)
    write(figure, 0.36, 0.031, "lower energy is better")
    box_legend(figure, 0.0)
    pair_legend(figure, "lower right")
    return figure


def draw_icm(material: Material) -> Figure:
    """The bag that ICM corrects with the largest fall of energy (the other bags as at the start), and its class."""
    solver, found = material.settings.solver, []
    for label, (problem, right) in enumerate(zip(material.problems, material.right, strict=True)):
        seed, rows = material.settings.seed + label, torch.arange(len(problem))
        start = problem.solve(k=solver.k, iterations=solver.iterations, epochs=0, seed=seed).selection
        end = problem.solve(start, epochs=solver.epochs)
        scores = problem.conditional(start)
        corrected = right[rows, end.selection] & ~right[rows, start]
        fall = (scores[rows, end.selection] - scores[rows, start]).masked_fill(~corrected, -torch.inf)
        found.append((float(fall.max()), label, int(fall.argmax()), start, end))
    fall_of_bag, label, row, start, end = max(found, key=lambda entry: entry[0])
    figure = pyplot.figure(figsize=(11, 4.7))
    axes = figure.add_axes((0.075, 0.14, 0.37, 0.74))
    for seed in range(RANDOM_STARTS):
        steps = material.problems[label].solve("random", epochs=solver.epochs, seed=seed).history
        name = None if seed else f"{RANDOM_STARTS} random starts"
        axes.plot([s.epoch for s in steps], [s.energy for s in steps], color=OTHER, lw=1, marker="o", ms=3, label=name)
    points = [step.epoch for step in end.history], [step.energy for step in end.history]
    axes.plot(*points, color=RIGHT, lw=3, marker="o", ms=7, label="start from mini-problems")
    axes.legend(fontsize=13, frameon=False)
    axes.set_xlabel("epochs of ICM", fontsize=13)
    axes.set_ylabel("energy of the class", fontsize=13)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    write(figure, 0.01, 0.94, "ICM lowers the energy", 16, weight="bold")
    write(figure, 0.48, 0.94, "by changing one bag at a time", 16, weight="bold")
    for left, text, selection in ((0.48, "before", start), (0.745, "after", end.selection)):
        material.draw(material.show(figure, (left, 0.27, 0.25, 0.61), label, row), label, row, int(selection[row]))
        write(figure, left, 0.21, text)
    change = f"this change lowers the energy by {fall_of_bag:.1f}"
    write(figure, 0.48, 0.13, f"tag \u201c{material.dataset.classes[label]}\u201d: {change}")
    box_legend(figure, 0.47)
    return figure


def draw_re_training(material: Material) -> Figure:
    """In the class that gains most in a round: the first images whose box moved (IoU below 0.5)."""
    found, measured = [], []
    for rounds in (0, 1):
        settings = material.settings.model_copy(update={"rounds": rounds})
        found.append(localize_target(material.run.target_bags, material.dataset, material.run.learned, settings))
        measured.append(corloc(localized(material.dataset, found[-1].boxes, material.truth)))
    name = largest_gain(measured[0].per_class, measured[1].per_class)
    label = material.dataset.classes.index(name)
    before, after = (material.target.selected_boxes(result.state.selection, label)[:, None] for result in found)
    rows = torch.nonzero(iou(before, after)[:, 0, 0] < 0.5)[:COLUMNS, 0].tolist()
    figure = pyplot.figure(figsize=(11, 6))
    for line, (result, share) in enumerate(zip(found, measured, strict=True)):
        title, top = ("warm-up", "after a round of re-training")[line], 0.95 - 0.455 * line
        own, mean = (f"{100 * value:.1f}%" for value in (share.per_class[name], share.mean))
        write(figure, 0.01, top, f"{title}: CorLoc of \u201c{name}\u201d {own}", 16, weight="bold")
        write(figure, 0.99, top, f"mean of {len(share.per_class)} classes {mean}", ha="right")
        for column, row in enumerate(rows):
            axes = material.show(figure, (0.01 + 0.1972 * column, top - 0.37, 0.191, 0.35), label, row)
            material.draw(axes, label, row, int(result.state.selection[label][row]))
    box_legend(figure, 0.0)
    return figure


def pair_scores(problem: ClassProblem, left: int, right: int) -> Tensor:
    """Pair scores of all proposals of two bags, averaged over both directions: (B, B)."""
    scores = problem.pairs.block(torch.tensor([left]), torch.tensor([right]))[0] / 2
    missing = problem.unary[left].isinf()[:, None] | problem.unary[right].isinf()
    return scores.masked_fill(missing, -torch.inf)


def distinct(boxes: Tensor, unary: Tensor, best: int) -> list[int]:
    """The best proposal and the three most object-like ones that hardly overlap it or each other."""
    order = unary.clone()
    order[best] = torch.inf
    return [place for place in nms(boxes, order, 0.2).tolist() if unary[place] > -torch.inf][:4]


def write(figure: Figure, x: float, y: float, text: str, size: float = 14, **options: Any) -> None:
    figure.text(x, y, re.sub(r"-(?=\d)", "\u2212", text), fontsize=size, **{"color": INK} | options)


def strength(score: float) -> dict[str, Any]:
    """Colour and width of the line of a pair score."""
    share = float(torch.tensor(score).sigmoid())
    return {"color": PAIR_COLOURS(share), "linewidth": 0.8 + 6 * share}


def draw_pair(figure: Figure, a: Rectangle, b: Rectangle, score: float, label_at: float | None) -> None:
    """Connect two drawn boxes; the score stands at a share of the line's length."""
    ends: Any = [figure.transFigure.inverted().transform(box.get_transform().transform((0.5, 0.5))) for box in (a, b)]
    look = strength(score)
    look["path_effects"] = [withStroke(linewidth=look["linewidth"] + 1.5, foreground="white", alpha=0.8)]
    figure.add_artist(ConnectionPatch(ends[0], ends[1], "figure fraction", patchA=a, patchB=b, **look))
    if label_at is not None:
        x, y = ends[0] + label_at * (ends[1] - ends[0])
        frame = {"boxstyle": "round,pad=0.25", "fc": "white", "ec": look["color"]}
        write(figure, x, y, f"{score:+.1f}", 13, ha="center", va="center", bbox=frame, zorder=5)


def pair_legend(figure: Figure, place: str) -> None:
    lines = [Line2D([], [], **strength(score)) for score in LEVELS]
    look: Any = {"title_fontsize": 14, "fontsize": 13, "frameon": False, "ncols": len(lines), "loc": place}
    names = [f"{score:+d}".replace("-", "\u2212") for score in LEVELS]
    figure.legend(lines, names, title="pair score: do both show the same class?", **look)


def box_legend(figure: Figure, x: float) -> None:
    lines = [Line2D([], [], color=RIGHT, lw=3), Line2D([], [], color=WRONG, lw=3, ls=DASHES)]
    look: Any = {"fontsize": 14, "frameon": False, "ncols": 2, "loc": "lower left", "bbox_to_anchor": (x, 0)}
    figure.legend(lines, ["right box", "wrong box"], **look)


def save(figure: Figure, file: Path) -> None:
    """Write a PNG; the palette of an octree keeps the colours of the boxes, and the file below 150 KB."""
    drawn, reduced = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100, facecolor="white")
    pyplot.close(figure)
    Image.open(drawn).convert("RGB").quantize(method=Image.Quantize.FASTOCTREE).save(
        reduced, format="png", optimize=True
    )
    write_bytes(file, reduced.getvalue())
    print(f"{file}: {len(reduced.getvalue()) / 1000:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished `pairloc demo`")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder to write the figures into")
    arguments = parser.parse_args()
    mpl.use("Agg")
    material = Material(arguments.run)
    mini = choose_mini_problem(material)
    save(draw_bag(material, mini), arguments.out / "bag.png")
    save(draw_pair_scores(material, mini), arguments.out / "pair-scores.png")
    save(draw_mini_problem(material, mini), arguments.out / "mini-problem.png")
    save(draw_icm(material), arguments.out / "icm.png")
    save(draw_re_training(material), arguments.out / "re-training.png")


if __name__ == "__main__":
    main()
