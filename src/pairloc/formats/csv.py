"""CSV tables: tags (`image,labels` with several labels per cell, or `image,label`), or boxes with corners."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from pairloc.boxes import to_xywh
from pairloc.datasets.building import Builder
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError, shown
from pairloc.formats.writing import ImageFiles, by_image, has_score
from pairloc.io import read_text, reason, write_text

ONE_FILE = True
_IMAGE_COLUMNS = ("image", "file", "filename", "file_name", "path", "picture")
_SINGLE_LABEL_COLUMNS = ("label", "tag", "class", "category", "name")
_MULTI_LABEL_COLUMNS = ("labels", "tags", "classes", "categories")
_CORNER_COLUMNS = (("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"))
_SEPARATORS = (";", "|", ",")
Row = tuple[str, dict[str, str]]  # place of the row in the file, cells by column


def matches(path: Path) -> bool:
    """Whether the suffix is that of a table."""
    return path.suffix.lower() in (".csv", ".tsv")


def parse(path: Path, builder: Builder) -> None:
    """Read a table with a header.

    A column `label` has one label per row. A column `labels` may have several, separated by ';', '|' or ','. If none
    of these occurs, cells are split at spaces if, in most of them, every word also occurs as a single label.
    """
    rows = list(_rows(path, builder))
    columns = list(rows[0][1]) if rows else []
    image_column = _find_column(_IMAGE_COLUMNS, columns, path, "the image")
    label_column = _find_column((*_MULTI_LABEL_COLUMNS, *_SINGLE_LABEL_COLUMNS), columns, path, "the labels")
    corners = next((names for names in _CORNER_COLUMNS if all(name in columns for name in names)), None)
    separator = None
    if label_column in _MULTI_LABEL_COLUMNS and corners is None:
        separator = _separator([cells[label_column] for _, cells in rows], path, builder)
    for place, cells in rows:
        name = builder.file_name(cells[image_column].strip(), place)
        if name is None:
            continue
        image = builder.find_file(name)
        if image is None:
            size = (cells.get("width") or None, cells.get("height") or None)
            image = builder.image(name, place, size=None if None in size else size)
        pieces = cells[label_column].split(separator) if separator else [cells[label_column]]
        for piece in pieces:
            if piece.strip():
                label = builder.label(piece, place)
                if corners and any(cells[side].strip() for side in corners):
                    values = [cells[side] for side in corners]
                    builder.box(image, label, values, place, score=cells.get("score", "").strip() or None)
                else:
                    builder.tag(image, label)
    builder.choose_image_folder([path.parent / "images", path.parent, path.parent.parent])


def _rows(path: Path, builder: Builder) -> Iterator[Row]:
    """The rows below the header, as dicts by lower-case column name; malformed rows become findings."""
    text = read_text(path)
    first = text.lstrip().splitlines()[0]
    delimiter = max((",", "\t", ";"), key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for cells in reader:
            place = f"{path}: line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip().lower() for cell in cells]
                if len(set(header)) < len(header):
                    raise InputError(
                        f"{place}: two columns have the same name in {shown(','.join(header))}; rename one"
                    )
                _find_column(_IMAGE_COLUMNS, header, path, "the image")
                _find_column((*_MULTI_LABEL_COLUMNS, *_SINGLE_LABEL_COLUMNS), header, path, "the labels")
            elif len(cells) != len(header):
                problem = f"has {len(cells)} cells, but the header has {len(header)}"
                builder.findings.add("bad-entry", place, f"{problem}; quote cells that contain '{delimiter}'")
            else:
                yield place, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: is not valid CSV ({reason(error)})") from error


def _find_column(names: tuple[str, ...], columns: list[str], path: Path, what: str) -> str:
    found = next((name for name in names if name in columns), None)
    if found is None and columns:
        raise InputError(f"{path}: line 1: no column for {what} among {shown(','.join(columns))}; name it {names[0]!r}")
    return found or names[0]


def _separator(cells: list[str], path: Path, builder: Builder) -> str | None:
    """Guess the separator between the labels of a cell, with a finding if in doubt; None for one label per cell."""
    used = [separator for separator in _SEPARATORS if any(separator in cell for cell in cells)]
    if len(used) > 1:
        problem = f"several separators occur ({' '.join(used)}); labels are split at {used[0]!r}"
        builder.findings.add("guessed-separator", str(path), problem)
    if used:
        return used[0]
    single = {cell.strip() for cell in cells if cell.strip() and " " not in cell.strip()}
    several = [cell.split() for cell in cells if " " in cell.strip()]
    if not several:
        return None
    splittable = sum(all(word in single for word in words) for words in several)
    chosen = " " if 2 * splittable >= len(several) else None
    meaning = "several labels" if chosen else "one label with several words"
    example = " ".join(several[0])
    builder.findings.add(
        "guessed-separator", str(path), f"{len(several)} cells such as {example!r} are read as {meaning}"
    )
    return chosen


def write_tags(path: Path, dataset: Dataset) -> None:
    """Write `image,labels`; if a class name contains a separator, `image,label` with one row per tag."""
    separable = not any(separator in name for name in dataset.classes for separator in (" ", *_SEPARATORS))
    rows = [["image", "labels" if separable else "label"]]
    for index, image in enumerate(dataset.images):
        names = dataset.names(index)
        rows += [[image.file, cell] for cell in ([";".join(names)] if separable else names or [""])]
    _write_table(path, rows)


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write `boxes.csv`: one row per box with image, size, label, score and corners; one row for an empty image."""
    table: list[list[object]] = [["image", "width", "height", "label", "score", "x1", "y1", "x2", "y2"]]
    for image, rows in zip(dataset.images, by_image(dataset, boxes), strict=True):
        head = [image.file, *(image.size or ("", ""))]
        for row in rows:
            score = float(boxes.score[row])
            corners = [f"{corner:.2f}" for corner in boxes.boxes[row].tolist()]
            table.append([*head, dataset.classes[boxes.label[row]], score if has_score(score) else "", *corners])
        if not rows:
            table.append([*head, "", "", "", "", "", ""])
    _write_table(folder / "boxes.csv", table)


def write_table(path: Path, dataset: Dataset, boxes: ScoredBoxes) -> None:
    """Write a table for people: one row per box with image, tag, confidence, x, y, width and height, lowest first."""
    order = np.argsort(boxes.score, kind="stable")
    table: list[list[object]] = [["image", "tag", "confidence", "x", "y", "width", "height"]]
    for row in order.tolist():
        box = [f"{value:.2f}" for value in to_xywh(boxes.boxes[row]).tolist()]
        name = dataset.images[boxes.image[row]].file
        table.append([name, dataset.classes[boxes.label[row]], float(boxes.score[row]), *box])
    _write_table(path, table)


def _write_table(path: Path, rows: Iterable[Iterable[object]]) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows(rows)
    write_text(path, stream.getvalue())
