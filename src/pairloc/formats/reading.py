"""`read` and its variants: load a data set of any format."""

import importlib
from pathlib import Path
from types import ModuleType

from pairloc.datasets.building import Builder, Parsed
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.findings import Findings
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.io import MANIFEST, no_garbage_collection, reason

# `auto` tries the formats in this order. A format is a module with `matches(path)` and `parse(path, builder)`; one that
# can be written also has `write(folder, dataset, boxes, images)`. ONE_FILE = True means that a data set is a single
# file; the user may then pass the folder that contains it.
FORMATS = {
    "ilsvrc": "ilsvrc",
    "voc": "voc",
    "yolo": "yolo",
    "csv": "csv",
    "label-studio": "label_studio",
    "coco": "coco",
    "cvat": "cvat",
    "folders": "folders",
}


def read(path: Path | str, format: str = "auto", images: Path | str | None = None) -> Dataset:
    """Read the images, classes and tags of a data set.

    Parameters
    ----------
    path : annotation file or folder
    format : name of the format, such as "coco" or "csv"; "auto" recognises it
    images : folder of the images; by default it is searched next to the annotations

    Returns
    -------
    dataset : Dataset; boxes in the annotations become tags and are dropped

    Raises
    ------
    InputError : the data set cannot be used; the message names the file, the position and the problem

    Examples
    --------
    >>> dataset = read("tags.csv", images="images")
    >>> len(dataset), dataset.names(0)
    (12, (...))
    """
    return _parse_strictly(path, format, images).dataset


def read_annotated(
    path: Path | str, format: str = "auto", images: Path | str | None = None
) -> tuple[Dataset, GroundTruth]:
    """Read a data set and its ground-truth boxes; the arguments are those of `read`."""
    parsed = _parse_strictly(path, format, images)
    return parsed.dataset, GroundTruth(parsed.image, parsed.label, parsed.boxes, parsed.ignored)


def read_boxes(path: Path | str, format: str = "auto", images: Path | str | None = None) -> tuple[Dataset, ScoredBoxes]:
    """Read a data set and its predicted boxes with scores; crowd and difficult boxes are dropped."""
    parsed = _parse_strictly(path, format, images)
    kept = ~parsed.ignored
    return parsed.dataset, ScoredBoxes(parsed.image[kept], parsed.label[kept], parsed.boxes[kept], parsed.score[kept])


def _parse_strictly(path: Path | str, format: str, images: Path | str | None) -> Parsed:
    findings = Findings()
    parsed = parse(Path(path), format, None if images is None else Path(images), findings)
    findings.raise_first_error()
    return parsed


def parse(path: Path, format: str, images: Path | None, findings: Findings) -> Parsed:
    """Read a data set, skip the entries that cannot be used and add them to `findings`.

    Raises an InputError if the data set as a whole cannot be read.
    """
    if format != "auto" and format not in FORMATS:
        raise InputError(f"there is no format {format!r}; choose one of auto, {', '.join(FORMATS)}")
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    if images is not None and not images.is_dir():
        raise InputError(f"{images}: there is no such image folder")
    if format == "auto":
        path, format = recognise(path)
    elif path.is_dir() and _is_one_file(format):
        path = _only_file(path, format)
    builder = Builder(findings, images)
    try:
        with no_garbage_collection():
            module(format).parse(path, builder)
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be read ({reason(error)})") from error
    except UnicodeError as error:  # a name with a lone surrogate reached the file system
        raise InputError(f"{path}: contains a file name that is not valid Unicode; correct it") from error
    return builder.build(str(path))


def recognise(path: Path) -> tuple[Path, str]:
    """Find the file or folder with the annotations, and its format.

    Raises an InputError if no format matches or several data sets are found.
    """
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    files = annotation_files(path)
    for format in FORMATS:
        if not (files and format == "folders") and module(format).matches(path):
            return path, format
    if len(files) == 1:
        return recognise(files[0])
    if files:
        raise InputError(
            f"{path}: contains several data sets ({', '.join(file.name for file in files)}); pass one of them"
        )
    nested = [file for folder in sorted(path.iterdir()) for file in annotation_files(folder)] if path.is_dir() else []
    if nested:
        examples = ", ".join(str(file.relative_to(path)) for file in nested[:5])
        raise InputError(f"{path}: contains annotations in subfolders ({examples}); pass one of them")
    raise InputError(f"{path}: is not recognised as a data set; pass its format with --format ({', '.join(FORMATS)})")


def annotation_files(folder: Path) -> list[Path]:
    """Sorted annotation files directly in a folder, not in its subfolders."""
    if not folder.is_dir():
        return []
    files = (file for file in folder.iterdir() if file.name != MANIFEST and not file.name.startswith("."))
    return sorted(file for file in files if file.is_file() and _may_hold_annotations(file))


def _may_hold_annotations(file: Path) -> bool:
    """Whether a file may be an annotation file; a JSON object counts as COCO only if it mentions "images"."""
    format = next((format for format in FORMATS if _is_one_file(format) and module(format).matches(file)), None)
    if format != "coco":
        return format is not None
    with file.open("rb") as stream:
        tail = b""
        while chunk := stream.read(1 << 20):
            if b'"images"' in tail + chunk:
                return True
            tail = chunk[-8:]
    return False


def _only_file(folder: Path, format: str) -> Path:
    files = [file for file in annotation_files(folder) if module(format).matches(file)]
    if len(files) != 1:
        raise InputError(f"{folder}: contains {len(files)} files that could be {format}; pass the path of one file")
    return files[0]


def _is_one_file(format: str) -> bool:
    return getattr(module(format), "ONE_FILE", False)


def module(format: str) -> ModuleType:
    """Import the module of a format; `format` is a key of FORMATS."""
    return importlib.import_module(f"pairloc.formats.{FORMATS[format]}")
