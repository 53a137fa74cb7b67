"""The file that explains the boxes of a method: `explanations.json`, beside its boxes.

Numbers are rounded to three digits after the point: 10,000 tags with 18 parts each take about 4 MB.
"""

from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, model_validator

from pairloc.io import read_model, write_json
from pairloc.localization.result import Localization

FILE = "explanations.json"
_DIGITS = 3
Box = tuple[float, float, float, float]  # x1, y1, x2, y2
Parts = tuple[float, ...]  # T; they sum to the score of a box


class ExplainedTag(BaseModel):
    """The parts of the scores of one tag: for every image those of its box, and of the best box elsewhere in it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    parts: tuple[str, ...]  # T names
    images: tuple[int | str, ...]  # n ids, as in the file of the boxes
    selected: tuple[Parts, ...]  # n
    other: tuple[Parts, ...]  # n
    boxes: tuple[Box | None, ...]  # n: the best box elsewhere; None if there is none

    @model_validator(mode="after")
    def _aligned(self) -> "ExplainedTag":
        tables = (self.selected, self.other)
        if any(len(column) != len(self.images) for column in (*tables, self.boxes)):
            raise ValueError("the columns have different lengths")
        if any(len(row) != len(self.parts) for table in tables for row in table):
            raise ValueError("a row has more or fewer numbers than there are parts")
        return self


class Explained(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    tags: dict[str, ExplainedTag]


def write_explanations(folder: Path, found: Localization) -> None:
    """Write what explains the boxes of a result into a folder; no file if they were selected without evidence."""
    tags = {}
    for label, explanation in enumerate(found.explanations):
        if explanation is None:
            continue
        bags, alternative = found.positives[label], explanation.alternative
        boxes = [[round(value, 1) for value in box] for box in found.proposals[bags, alternative].tolist()]
        is_other = (alternative != found.state.selection[label]).tolist()
        tags[found.dataset.classes[label]] = {
            "parts": list(explanation.names),
            "images": [found.dataset.images[bag].id for bag in bags.tolist()],
            "selected": _rounded(explanation.selected),
            "other": _rounded(explanation.other),
            "boxes": [box if other else None for box, other in zip(boxes, is_other, strict=True)],
        }
    if tags:
        write_json(folder / FILE, {"tags": tags})


def read_explanations(folder: Path) -> Explained | None:
    """Read what `write_explanations` wrote; None if there is no file. Raises an InputError if it is damaged."""
    return read_model(folder / FILE, Explained) if (folder / FILE).is_file() else None


def _rounded(parts: torch.Tensor) -> list[list[float]]:
    """Numbers (n, T) as lists; a part that is not finite, as scores may not be, counts as none."""
    finite = torch.nan_to_num(parts.double(), nan=0.0, posinf=0.0, neginf=0.0)
    return [[round(value, _DIGITS) for value in row] for row in finite.tolist()]
