"""`read`: any data set, whatever its format, behind one type."""

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

# In the order in which `auto` asks them whether a path is theirs. To add one: a module with `matches(path)` and
# `parse(path, builder)`, with `write(folder, dataset, boxes, images)` if it is to be written, and with ONE_FILE = True
# if its data sets are one file each, to be found in a folder that is named in its place.
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

    `format` is one of FORMATS or "auto"; `images` is the folder the images lie in, where it is not beside the
    annotations. Boxes, where the data set has any, give tags and are forgotten.
    """
    return _parse_strictly(path, format, images).dataset


def read_annotated(
    path: Path | str, format: str = "auto", images: Path | str | None = None
) -> tuple[Dataset, GroundTruth]:
    """Read a data set with its annotated boxes."""
    parsed = _parse_strictly(path, format, images)
    return parsed.dataset, GroundTruth(parsed.image, parsed.label, parsed.boxes, parsed.ignored)


def read_boxes(path: Path | str, format: str = "auto", images: Path | str | None = None) -> tuple[Dataset, ScoredBoxes]:
    """Read a data set with boxes that a program found, each with its score; crowd and difficult boxes are left out."""
    parsed = _parse_strictly(path, format, images)
    found = ~parsed.ignored
    return parsed.dataset, ScoredBoxes(
        parsed.image[found], parsed.label[found], parsed.boxes[found], parsed.score[found]
    )


def _parse_strictly(path: Path | str, format: str, images: Path | str | None) -> Parsed:
    findings = Findings()
    parsed = parse(Path(path), format, None if images is None else Path(images), findings)
    findings.raise_first_error()
    return parsed


def parse(path: Path, format: str, images: Path | None, findings: Findings) -> Parsed:
    """Read a data set, noting what is wrong with it; what cannot be used is left out."""
    if format != "auto" and format not in FORMATS:
        raise InputError(f"there is no format {format!r}; known are auto, {', '.join(FORMATS)}")
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
    except UnicodeError as error:  # a name with half a character pair reached the file system
        raise InputError(f"{path}: has a name that is not text") from error
    return builder.build(str(path))


def recognise(path: Path) -> tuple[Path, str]:
    """The file or folder that holds the annotations, and its format."""
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
            f"{path}: holds several data sets ({', '.join(file.name for file in files)}); name one of them"
        )
    deeper = [file for folder in sorted(path.iterdir()) for file in annotation_files(folder)] if path.is_dir() else []
    if deeper:
        some = ", ".join(str(file.relative_to(path)) for file in deeper[:5])
        raise InputError(f"{path}: holds annotations in folders of it ({some}); name one of them")
    raise InputError(f"{path}: no known data set here; name its format with --format ({', '.join(FORMATS)})")


def annotation_files(folder: Path) -> list[Path]:
    """The annotation files that lie directly in a folder."""
    if not folder.is_dir():
        return []
    files = (file for file in folder.iterdir() if file.name != MANIFEST and not file.name.startswith("."))
    return sorted(file for file in files if file.is_file() and _may_hold_annotations(file))


def _may_hold_annotations(file: Path) -> bool:
    """Whether a file is one of a data set's: not every JSON file that lies in a folder is."""
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
        raise InputError(f"{folder}: holds {len(files)} files that could be {format}; name the file")
    return files[0]


def _is_one_file(format: str) -> bool:
    return getattr(module(format), "ONE_FILE", False)


def module(format: str) -> ModuleType:
    """The module of a format in FORMATS."""
    return importlib.import_module(f"pairloc.formats.{FORMATS[format]}")
