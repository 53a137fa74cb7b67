"""Static figures for papers as PNG, SVG and PDF: CorLoc per class and images with boxes."""

import io
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.evaluation.causes import causes
from pairloc.evaluation.corloc import localized
from pairloc.images import ImageError, open_image
from pairloc.io import claim_folder, write_bytes
from pairloc.report.page import MethodResult

Case = tuple[tuple[int, int], str]  # image and class, and the cause of the error or ""
_FORMATS = ("png", "svg", "pdf")
_MAX_NAME = 24  # characters of a class name
_COLOURS = {
    "GT": "#e0a800", "WUU": "#9d4edd", "WU": "#1c7ed6", "U": "#e8590c", "F": "#2b8a3e", "SVM": "#c2255c",
    "D": "#0b7285", "LSDA": "#5c940d", "T": "#862e9c",
}  # fmt: skip

# Corner of the box that a method's tag is drawn in: (right instead of left, bottom instead of top).
_CORNERS = {"GT": (False, False), "WUU": (True, False), "U": (True, True), "WU": (False, True), "F": (True, False)}


def write_figures(
    folder: Path, dataset: Dataset, methods: Sequence[MethodResult], truth: GroundTruth | None, *, cases: int = 12
) -> list[Path]:
    """Write figures and return their files: CorLoc per class (if known), and sheets of `cases` images with boxes.

    `images` shows where methods differ most. With ground truth, `successes` shows boxes that the last method got right,
    first those that the others got wrong, `failures` those it got wrong, in turn by their cause.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "pairloc"
    claim_folder(folder, "images.png")
    written = []
    if any(method.corloc for method in methods):
        written += _save(_per_class(methods), folder / "corloc_per_class")
    sheets = {"images": [(key, "") for key in _most_different(dataset, methods)]}
    if truth is not None and methods:
        sheets |= sheet_cases(dataset, methods, truth)
    for name, keys in sheets.items():
        if keys or name == "images":
            written += _save(_sheet(dataset, methods, truth, keys[:cases]), folder / name)
    return written


def sheet_cases(dataset: Dataset, methods: Sequence[MethodResult], truth: GroundTruth) -> dict[str, list[Case]]:
    """Successes, the rarest among the methods first, and failures of the last method, one of each cause in turn."""
    results = [localized(dataset, method.boxes, truth) for method in methods]
    right = np.stack([result.right(0.5) for result in results])  # (methods, n)
    keys = list(zip(results[-1].image.tolist(), results[-1].label.tolist(), strict=True))
    solved = [row for row in np.argsort(right.sum(axis=0), kind="stable").tolist() if right[-1, row]]
    by_cause: dict[str, list[Case]] = {}
    for row, cause in enumerate(causes(dataset, methods[-1].boxes, truth, results[-1], 0.5)):
        if cause not in ("right", "no box"):
            by_cause.setdefault(cause, []).append((keys[row], cause))
    in_turn = [case for group in zip_longest(*by_cause.values()) for case in group if case is not None]
    return {"successes": [(keys[row], "") for row in solved], "failures": in_turn}


def _save(figure: Any, stem: Path) -> list[Path]:
    from matplotlib import pyplot

    files = [stem.with_suffix(f".{format}") for format in _FORMATS]
    for file in files:
        stream = io.BytesIO()
        figure.savefig(stream, format=file.suffix[1:], dpi=150)
        write_bytes(file, stream.getvalue())
    pyplot.close(figure)
    return files


def _per_class(methods: Sequence[MethodResult]) -> Any:
    from matplotlib import pyplot

    measured = [method for method in methods if "0.5" in method.corloc]
    names = list(measured[-1].corloc["0.5"]["per_class"])
    figure, axes = pyplot.subplots(figsize=(max(6, 0.7 * len(names)), 3.6), layout="constrained")
    width = 0.8 / len(measured)
    for index, method in enumerate(measured):
        values = [100 * method.corloc["0.5"]["per_class"].get(name, np.nan) for name in names]
        mean = 100 * method.corloc["0.5"]["mean"]
        positions = np.arange(len(names)) + (index - (len(measured) - 1) / 2) * width
        axes.bar(positions, values, width, label=f"{method.name} ({mean:.1f})", color=_COLOURS.get(method.short))
    axes.set(ylabel="CorLoc@0.5 (%)", ylim=(0, 100))
    labels = [_figure_label(name) for name in names]
    axes.set_xticks(np.arange(len(names)), labels=labels, rotation=40, ha="right")
    axes.legend(fontsize=8, ncols=2)
    return figure


def _sheet(dataset: Dataset, methods: Sequence[MethodResult], truth: GroundTruth | None, keys: Sequence[Case]) -> Any:
    """Draw images with boxes as in the paper."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    columns = min(4, max(1, len(keys)))
    rows = max(1, -(-len(keys) // columns))
    figure, grid = pyplot.subplots(rows, columns, figsize=(3 * columns, 3 * rows), layout="constrained", squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, ((image, label), cause) in zip(grid.flat, keys, strict=False):
        pixels = _pixels(dataset, image)
        if pixels is not None:
            axes.imshow(pixels)
        title = _figure_label(dataset.classes[label])
        axes.set_title(f"{title}: {cause}" if cause else title, fontsize=9)
        boxes = []
        if truth is not None:
            mask = (truth.image == image) & (truth.label == label) & ~truth.ignored
            boxes += [("GT", box) for box in truth.boxes[mask]]
        for method in methods:
            method_rows = np.flatnonzero((method.boxes.image == image) & (method.boxes.label == label))
            boxes += [(method.short, method.boxes.boxes[method_rows[0]])] if len(method_rows) else []
        for tag, (x1, y1, x2, y2) in boxes:
            colour = _COLOURS.get(tag, "gray")
            axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1.6))
            right, bottom = _CORNERS.get(tag, (False, False))
            axes.text(
                x2 if right else x1, y2 if bottom else y1, tag, fontsize=6, color="white",
                bbox={"color": colour, "pad": 0.8}, ha="right" if right else "left", va="bottom" if bottom else "top",
            )  # fmt: skip
    return figure


def _most_different(dataset: Dataset, methods: Sequence[MethodResult]) -> list[tuple[int, int]]:
    """(image, class) keys, sorted by how far the last method's box is from the first method's, furthest first."""
    all_boxes = [method.boxes for method in methods]
    tables = [{(int(i), int(c)): b for i, c, b in zip(f.image, f.label, f.boxes, strict=True)} for f in all_boxes]
    keys = [(i, c) for i, tags in enumerate(dataset.tags) for c in tags if all((i, c) in table for table in tables)]
    return sorted(keys, key=lambda key: -float(np.abs(tables[0][key] - tables[-1][key]).sum()))


def _pixels(dataset: Dataset, index: int) -> Any:
    try:
        return np.asarray(open_image(dataset.path(index)))
    except ImageError:
        return None


def _figure_label(name: str) -> str:
    """A class name, shortened to fit a figure and escaped so that matplotlib does not parse it as mathematics."""
    return (name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 3] + "...").replace("$", r"\$")
