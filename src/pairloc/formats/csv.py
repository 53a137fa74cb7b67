"""CSV: tags (`image,labels` with several labels a cell, or one row a pair), or boxes with their corners."""

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from pairloc.datasets.building import Builder
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError, shown
from pairloc.formats.writing import ImageFiles, by_image, has_score
from pairloc.io import read_text, reason, write_text

ONE_FILE = True
_IMAGE = ("image", "file", "filename", "file_name", "path", "picture")
_ONE = ("label", "tag", "class", "category", "name")
_MANY = ("labels", "tags", "classes", "categories")
_CORNERS = (("x1", "y1", "x2", "y2"), ("xmin", "ymin", "xmax", "ymax"))
_SEPARATORS = (";", "|", ",")
Row = tuple[str, dict[str, str]]  # the place, and the cells by column


def matches(path: Path) -> bool:
    """Whether this is a table of tags by its ending."""
    return path.suffix.lower() in (".csv", ".tsv")


def parse(path: Path, builder: Builder) -> None:
    """Read a table with a header.

    A column called `label` holds one label a row; one called `labels` holds several, separated by ';', '|', ',' or,
    where none of these occurs, by spaces if the words also stand alone as labels.
    """
    rows = list(_rows(path, builder))
    columns = list(rows[0][1]) if rows else []
    image_column = _one_of(_IMAGE, columns, path, "the image")
    label_column = _one_of((*_MANY, *_ONE), columns, path, "the labels")
    corners = next((names for names in _CORNERS if all(name in columns for name in names)), None)
    separator = None
    if label_column in _MANY and corners is None:
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
    builder.look_in([path.parent / "images", path.parent, path.parent.parent])


def _rows(path: Path, builder: Builder) -> Iterator[Row]:
    """The rows under the header, each as a map from lower-case column names."""
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
                    raise InputError(f"{place}: two columns have one name in {shown(','.join(header))}; rename one")
                _one_of(_IMAGE, header, path, "the image")
                _one_of((*_MANY, *_ONE), header, path, "the labels")
            elif len(cells) != len(header):
                found = f"has {len(cells)} cells where the header has {len(header)}"
                builder.findings.add("bad-entry", place, f"{found}; put quotes around cells with '{delimiter}'")
            else:
                yield place, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.line_num}: is not valid CSV ({reason(error)})") from error


def _one_of(names: tuple[str, ...], columns: list[str], path: Path, what: str) -> str:
    found = next((name for name in names if name in columns), None)
    if found is None and columns:
        raise InputError(f"{path}: line 1: no column for {what} among {shown(','.join(columns))}; call it {names[0]!r}")
    return found or names[0]


def _separator(cells: list[str], path: Path, builder: Builder) -> str | None:
    """What stands between the labels of a cell; None where every cell is one label."""
    marks = [mark for mark in _SEPARATORS if any(mark in cell for cell in cells)]
    if len(marks) > 1:
        found = f"several separators occur ({' '.join(marks)}), labels are cut at {marks[0]!r}"
        builder.findings.add("guessed-separator", str(path), found)
    if marks:
        return marks[0]
    alone = {cell.strip() for cell in cells if cell.strip() and " " not in cell.strip()}
    several = [cell.split() for cell in cells if " " in cell.strip()]
    if not several:
        return None
    splits = sum(all(word in alone for word in words) for words in several)
    chosen = " " if 2 * splits >= len(several) else None
    meaning = "several labels" if chosen else "one label of several words"
    example = " ".join(several[0])
    builder.findings.add(
        "guessed-separator", str(path), f"{len(several)} cells such as {example!r} are read as {meaning}"
    )
    return chosen


def write_tags(path: Path, dataset: Dataset) -> None:
    """Write `image,labels`; where a name could be taken for several, one row a pair under `image,label`."""
    plain = not any(mark in name for name in dataset.classes for mark in (" ", *_SEPARATORS))
    rows = [["image", "labels" if plain else "label"]]
    for index, image in enumerate(dataset.images):
        names = dataset.names(index)
        rows += [[image.file, cell] for cell in ([";".join(names)] if plain else names or [""])]
    _write_table(path, rows)


def write(folder: Path, dataset: Dataset, boxes: ScoredBoxes, images: ImageFiles) -> None:
    """Write `boxes.csv`: image, size, label, score and corners, one row a box; an image without a box has one too."""
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


def _write_table(path: Path, rows: Iterable[Iterable[object]]) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows(rows)
    write_text(path, stream.getvalue())
