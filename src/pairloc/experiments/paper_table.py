"""The paper's main table for a finished run: CorLoc of every method, mAP of detectors trained on its boxes, times."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from pairloc.errors import InputError
from pairloc.evaluation.table import SNAPPED, Evaluation
from pairloc.io import read_model

SUPERVISED = "supervised"  # a detector trained on ground truth; it has no CorLoc
# Methods that continue another one, whose history they have; their own time is that of re-training, or of inference.
CONTINUES = {"fine-tuned": "re-train", SNAPPED: "re-localize"}


@dataclass(frozen=True)
class Row:
    """One method: CorLoc with its 95% interval by threshold, seconds, and mAP@0.5 of its detector; in percent.

    The seconds are those spent on the target; what is learned on the source once for all methods is not in them. They
    are None if the run did not record them apart.
    """

    method: str
    corloc: Mapping[str, tuple[float, float, float]]  # mean, low, high
    training: float | None  # seconds of re-training: class scores, SVMs, image classifiers
    inference: float | None  # seconds of re-localization: selecting boxes
    map50: float | None


class _Step(BaseModel):
    model_config = ConfigDict(frozen=True)
    step: str
    seconds: float


class _History(BaseModel):
    model_config = ConfigDict(frozen=True)
    history: tuple[_Step, ...]


def paper_table(folder: Path, evaluation: Evaluation, map50: Mapping[str, float]) -> list[Row]:
    """Collect the rows of the run in `folder`; `map50` gives mAP@0.5 (0 to 1) by method, or of "supervised".

    Raises an InputError if the run has no ground truth, or `map50` names a method that the run does not have.
    """
    if not evaluation.methods:
        raise InputError(f"{folder}: has no ground truth to measure CorLoc with")
    for name in map50:
        if name not in evaluation.methods and name != SUPERVISED:
            known = ", ".join([*evaluation.methods, SUPERVISED])
            raise InputError(f"there is no method {name!r} in this run; known are {known}")
    rows = []
    for method, measured in evaluation.methods.items():
        corloc = {
            threshold: (100 * entry.mean, 100 * entry.interval[0], 100 * entry.interval[1])
            for threshold, entry in measured.items()
        }
        file = folder / method / "history.json"
        steps = read_model(file, _History).history if file.is_file() else ()
        own = {CONTINUES[method]: evaluation.seconds.get(method, 0.0)} if method in CONTINUES else {}
        training, inference = (
            sum(step.seconds for step in steps if step.step == name) + own.get(name, 0.0) if steps else None
            for name in ("re-train", "re-localize")
        )
        rows.append(Row(method, corloc, training, inference, _percent(map50.get(method))))
    if SUPERVISED in map50:
        rows.append(Row(SUPERVISED, {}, None, None, _percent(map50[SUPERVISED])))
    return rows


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table as text, header first; a column without any value is left out."""
    thresholds = list(rows[0].corloc)
    header = ["method", *(f"CorLoc@{threshold}" for threshold in thresholds), "training, s", "inference, s", "mAP@0.5"]
    table = [header]
    for row in rows:
        cells = [f"{row.method} (segmenter)" if row.method == SNAPPED else row.method]
        for threshold in thresholds:
            mean = row.corloc.get(threshold)
            cells.append(f"{mean[0]:.1f} [{mean[1]:.1f}, {mean[2]:.1f}]" if mean else "")
        cells += ["" if value is None else f"{value:.1f}" for value in (row.training, row.inference, row.map50)]
        table.append(cells)
    used = [column for column in range(len(header)) if any(line[column] for line in table[1:])]
    return [[line[column] for column in used] for line in table]


def as_text(rows: Sequence[Row]) -> str:
    """Format the table for a terminal."""
    table = _cells(rows)
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(parts))
        for parts in (list(zip(line, widths, strict=True)) for line in table)
    )


def as_markdown(rows: Sequence[Row]) -> str:
    """Format the table as Markdown."""
    header, *body = _cells(rows)
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_latex(rows: Sequence[Row]) -> str:
    """Format the table as LaTeX (booktabs)."""
    header, *body = _cells(rows)
    columns = "l" + "r" * (len(header) - 1)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(header) + r" \\", r"\midrule"]
    lines += [" & ".join(cell or "--" for cell in line) + r" \\" for line in body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the table as JSON content."""
    return [asdict(row) for row in rows]
