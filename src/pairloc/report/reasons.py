"""Reasons: what speaks for a selected box and for the best box elsewhere, in words for people."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pairloc.datasets.dataset import Dataset
from pairloc.localization.evidence import OWN_CLASS
from pairloc.localization.explained import Box, read_explanations
from pairloc.localization.explanation import BEFORE, NETWORK, PAIRS

_SHOWN = 6  # parts shown by name; the others are summed
REST = "everything else"

# What the parts of a score say, in words; parts with the same words are summed (docs/explanation/method.md, Evidence).
WORDS = {
    "transfer score": "looks like an object",
    "objectness": "looks like an object",
    "known class": "resembles known kinds of things",
    OWN_CLASS: "is recognised as the tag",
    "doubt": "resembles known kinds of things",
    "inside a known class": "resembles known kinds of things",
    "recurrence": "recurs in images with the tag",
    "recurrence, mean score": "recurs in images with the tag",
    "recurrence, ten best": "recurs in images with the tag",
    "elsewhere": "occurs in images without the tag",
    "elsewhere, mean score": "occurs in images without the tag",
    "elsewhere, ten best": "occurs in images without the tag",
    "log area": "size",
    "border": "image borders it touches",
    "lead": "boxes around it",
    "company": "boxes around it",
    "class score": "looks like the tag",
    "other tag": "looks like another tag",
    PAIRS: "matches the other boxes of the tag",
    BEFORE: "evidence before fine-tuning",
    NETWORK: "recognised by the fine-tuned network",
}


@dataclass(frozen=True)
class Reasons:
    """Parts (name, selected, other) of the scores of two boxes, the largest difference first; the rest comes last."""

    parts: tuple[tuple[str, float, float], ...]
    box: Box | None = None  # the best box elsewhere; without one, its parts are those of the selected box

    @classmethod
    def of(cls, names: Sequence[str], selected: Sequence[float], other: Sequence[float], box: Box | None) -> "Reasons":
        """Sum parts that have the same words, and those with small differences to one."""
        sums: dict[str, tuple[float, float]] = {}
        for name, one, two in zip(names, selected, other, strict=True):
            words = WORDS.get(name, name)
            before = sums.get(words, (0.0, 0.0))
            sums[words] = (before[0] + one, before[1] + two)
        parts = [(words, *values) for words, values in sums.items() if any(values)]
        parts.sort(key=lambda part: -abs(part[1] - part[2] if box is not None else part[1]))
        rest = parts[_SHOWN:]
        if len(rest) > 1:
            parts = [*parts[:_SHOWN], (REST, sum(part[1] for part in rest), sum(part[2] for part in rest))]
        return cls(tuple((words, round(one, 2), round(two, 2)) for words, one, two in parts), box)


def read_reasons(folder: Path, run: Dataset, dataset: Dataset) -> dict[tuple[int, int], Reasons]:
    """Read the reasons of a method's boxes by (image, class) of `dataset`; none if the method wrote none.

    The folder's image ids are those of `run`, the tagged images of its run.
    """
    explained = read_explanations(folder)
    if explained is None:
        return {}
    ids = [image.id for image in run.images]
    index = {id: position for id, position in zip(ids, dataset.indices_of(run), strict=True) if position is not None}
    labels = {name: label for label, name in enumerate(dataset.classes)}
    reasons = {}
    for name, tag in explained.tags.items():
        for id, selected, other, box in zip(tag.images, tag.selected, tag.other, tag.boxes, strict=True):
            if id in index and name in labels:
                reasons[index[id], labels[name]] = Reasons.of(tag.parts, selected, other, box)
    return reasons
