"""`Builder` collects what a reader finds and builds a `Dataset`; it checks names, ids, paths and boxes."""

import itertools
import math
import os
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from pairloc.boxes import Bools, Floats, Ints, Size, clip
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.findings import Findings
from pairloc.errors import InputError, shown
from pairloc.io import reason

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
EDGE_TOLERANCE = 1.0  # pixels a box may extend beyond its image without a finding: formats count from 0 or from 1
_MAX_SIDE = 1 << 20  # pixels
_MAX_COORDINATE = 1e7  # pixels; beyond any image
# Unicode categories: control characters, lone surrogates, line and paragraph separators.
_UNWRITABLE = ("Cc", "Cs", "Zl", "Zp")


@dataclass(frozen=True)
class Parsed:
    """The result of reading a file: a data set, and its n boxes as columns."""

    dataset: Dataset
    image: Ints  # (n,) index into Dataset.images
    label: Ints  # (n,) index into Dataset.classes
    boxes: Floats  # (n, 4) x1, y1, x2, y2
    ignored: Bools  # (n,) crowd and difficult boxes
    score: Floats  # (n,) NaN for a box without a score
    places: tuple[object, ...]  # (n,) place of each box in its file, for messages


class Builder:
    """Collects images, classes, tags and boxes from a reader, in the order of the format.

    An entry that cannot be used becomes a finding and is skipped, so that reading continues and `doctor` can list all
    problems; `read` raises the first error as an InputError. The argument `place` says where in the file an entry is:
    any object whose `str` names it. It is converted only for a finding, since a file may have millions of entries.
    """

    def __init__(self, findings: Findings, images: Path | None = None) -> None:
        self.findings = findings
        self.folder = images
        self.images: list[Image] = []
        self.classes: dict[str, int] = {}
        self._class_ids: list[int] = []
        self._tags: list[set[int]] = []
        self._by_id: dict[int | str, int] = {}
        self._by_file: dict[str, int] = {}
        self._rows: list[tuple[int, int, float, float, float, float, bool, float]] = []
        self._places: list[object] = []

    def image(
        self, file: object, place: object, *, id: object = None, size: tuple[object, object] | None = None
    ) -> int:
        """Add an image and return its index, or -1 if it is rejected. The default ids are 1, 2, ...

        The boxes of a rejected image cause no further findings: those of a second entry for the same file go to the
        first entry, those of an entry without a valid name are dropped.
        """
        name = self.file_name(file, place)
        if name is None:
            rejected_id = int_if_whole(id)
            if isinstance(rejected_id, int | str):
                self._by_id.setdefault(rejected_id, -1)
            return -1
        if id is None:
            id = next(number for number in itertools.count(len(self.images) + 1) if number not in self._by_id)
        id = int_if_whole(id)
        if isinstance(id, bool) or not (isinstance(id, int) or (isinstance(id, str) and is_valid_name(id))):
            return self._refuse("bad-entry", place, f"image id is {shown(id)}, not a number or a string")
        if id in self._by_id:
            return self._refuse("duplicate-id", place, f"image id {shown(id)} is already used")
        if name in self._by_file:
            self._refuse("duplicate-image", place, f"{name!r} was already listed")
            self._by_id[id] = self._by_file[name]
            return self._by_file[name]
        self._by_id[id] = self._by_file[name] = len(self.images)
        self.images.append(Image(id, name, self._size(size, place)))
        self._tags.append(set())
        return len(self.images) - 1

    def find_image(self, id: object) -> int | None:
        """The index of the image with this id; -1 if it was rejected, None if there is none."""
        id = int_if_whole(id)
        return self._by_id.get(id) if isinstance(id, int | str) and not isinstance(id, bool) else None

    def find_file(self, name: str) -> int | None:
        """The index of the image with this file name, as returned by `file_name`; None if there is none."""
        return self._by_file.get(name)

    def file_name(self, file: object, place: object) -> str | None:
        """Check and normalize a file name relative to the image folder; None, with a finding, if it is invalid."""
        if not isinstance(file, str) or not is_valid_name(file):
            self.findings.add("bad-entry", place, f"the file name is {shown(file)}, which is not a valid name")
            return None
        path = PurePosixPath(file.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or (path.parts and path.parts[0].endswith(":")):
            self.findings.add("path-outside", place, f"the file name is {shown(file)}")
            return None
        if not path.name or max(len(part.encode()) for part in path.parts) > 255:
            self.findings.add("bad-entry", place, f"the file name is {shown(file)}, which is not a valid name")
            return None
        return path.as_posix()

    def label(self, name: object, place: object, *, id: int | None = None) -> int:
        """Return the index of a class and add it if it is new; -1 if the name is invalid."""
        if not isinstance(name, str) or not is_valid_name(name):
            return self._refuse("bad-entry", place, f"the class name is {shown(name)}, which is not a valid name")
        name = name.strip()
        if name not in self.classes:
            self.classes[name] = len(self.classes)
            self._class_ids.append(len(self.classes) if id is None else id)
        return self.classes[name]

    def tag(self, image: int, label: int) -> None:
        """Tag an image; an index of -1 belongs to a rejected entry and is ignored."""
        if image >= 0 and label >= 0:
            self._tags[image].add(label)

    def box(
        self,
        image: int,
        label: int,
        corners: Sequence[object],
        place: object,
        *,
        ignored: bool = False,
        score: object = None,
    ) -> None:
        """Add a box (x1, y1, x2, y2) of a class; unless `ignored`, the image also gets the tag."""
        if image < 0 or label < 0:
            return
        x1, y1, x2, y2 = map(parse_number, corners) if len(corners) == 4 else (None,) * 4
        if x1 is None or y1 is None or x2 is None or y2 is None:
            self._refuse("bad-entry", place, f"the box is {shown(corners)}, not four numbers")
            return
        score_value = math.nan if score is None else parse_number(score)
        if score_value is None or (score is not None and not math.isfinite(score_value)):
            self._refuse("bad-entry", place, f"the score is {shown(score)}, not a finite number")
            return
        if ignored:
            self.findings.add("crowd-box", place, "is marked as crowd or difficult")
        self._rows.append((image, label, x1, y1, x2, y2, ignored, score_value))
        self._places.append(place)

    def choose_image_folder(self, folders: Iterable[Path]) -> None:
        """Use the first of these folders that contains one of the images.

        If the user passed a folder, it is used, or its subfolder `images` if only that contains one of them.
        """
        given = self.folder
        if given is not None:
            folders = [given, given / "images"]
        sample = self.images[:: max(1, len(self.images) // 200)]
        candidates = (folder.absolute() for folder in folders)
        self.folder = next((f for f in candidates if any((f / image.file).is_file() for image in sample)), given)

    def build(self, place: object) -> Parsed:
        """Check the boxes and return everything that is valid; `place` names the data set in a finding."""
        if not self.images and not self.findings.errors:
            self.findings.add("no-images", place, "contains no images")
        columns = list(zip(*self._rows, strict=True)) or [()] * 8
        image, label = np.array(columns[0], dtype=np.int64), np.array(columns[1], dtype=np.int64)
        boxes = np.array(columns[2:6], dtype=np.float64).reshape(4, -1).T.copy()  # (n, 4)
        ignored, score = np.array(columns[6], dtype=np.bool_), np.array(columns[7], dtype=np.float64)
        for index, tag in zip(image[~ignored].tolist(), label[~ignored].tolist(), strict=True):
            self._tags[index].add(tag)  # even if the box is invalid: the image does show the object
        boxes, kept = self._check_boxes(boxes, image)
        dataset = Dataset(
            tuple(self.images),
            tuple(self.classes),
            tuple(tuple(sorted(tags)) for tags in self._tags),
            tuple(self._unique_class_ids()),
            self.folder,
        )
        places = tuple(itertools.compress(self._places, kept.tolist()))
        return Parsed(dataset, image[kept], label[kept], boxes[kept], ignored[kept], score[kept], places)

    def _check_boxes(self, boxes: Floats, image: Ints) -> tuple[Floats, Bools]:
        """Clip boxes (n, 4) to their images (n,) and add findings: clipped boxes (n, 4), mask of valid ones (n,)."""
        unlimited = (math.inf, math.inf)
        sizes = np.array([entry.size or unlimited for entry in self.images], dtype=np.float64).reshape(-1, 2)[image]
        finite = np.asarray((np.abs(boxes) <= _MAX_COORDINATE).all(axis=1))
        negative = finite & np.asarray((boxes[:, 2:] < boxes[:, :2]).any(axis=1))
        valid = finite & ~negative
        clipped = clip(boxes, sizes)
        outside = valid & np.asarray(np.abs(clipped - boxes).max(axis=1, initial=0) > EDGE_TOLERANCE)
        empty = valid & np.asarray((clipped[:, 2:] <= clipped[:, :2]).any(axis=1))
        for kind, mask, problem in (
            ("not-a-number", ~finite, "the box has a coordinate that is not finite or is far too large"),
            ("negative-size", negative, "the box has a negative width or height"),
            ("box-outside", outside, "the box extends beyond its image"),
            ("box-without-area", empty, "the box has no area inside its image"),
        ):
            for row in np.flatnonzero(mask).tolist():
                self.findings.add(kind, self._places[row], f"{problem}: {_show_box(boxes[row])}")
        return clipped, valid & ~empty

    def _unique_class_ids(self) -> list[int]:
        ids = self._class_ids
        return ids if len(set(ids)) == len(ids) else list(range(1, len(ids) + 1))

    def _size(self, size: tuple[object, object] | None, place: object) -> Size | None:
        if size is None or size == (None, None):
            return None
        width, height = (parse_number(side) for side in size)
        if width is None or height is None or not (1 <= width <= _MAX_SIDE and 1 <= height <= _MAX_SIDE):
            self.findings.add("bad-entry", place, f"the size is {shown(size[0])} x {shown(size[1])}")
            return None
        return int(width), int(height)

    def _refuse(self, kind: str, place: object, problem: str) -> int:
        self.findings.add(kind, place, problem)
        return -1


def parse_number(value: object) -> float | None:
    """Convert a number, or a string with a number, to a float; None for anything else."""
    if type(value) is float:  # fast path, by far the most frequent case
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str) or "_" in str(value)[:60]:
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def int_if_whole(value: object) -> object:
    """Convert an id such as 3.0 to the int 3; return anything else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Sorted relative names, with forward slashes, of the files below a folder that have one of these suffixes.

    Links to folders are followed, each folder once; hidden files and folders are skipped.
    """
    names = []
    seen: set[str] = set()
    for base, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        real = os.path.realpath(base)
        folders[:] = [] if real in seen else sorted(name for name in folders if not name.startswith("."))
        if real in seen:
            continue
        seen.add(real)
        relative = PurePosixPath(Path(base).relative_to(folder).as_posix())
        names += [
            (relative / file).as_posix()
            for file in files
            if file.lower().endswith(suffixes) and not file.startswith(".")
        ]
    return sorted(names)


def images_below(folder: Path) -> list[str]:
    """Sorted relative names of the images below a folder."""
    return files_below(folder, SUFFIXES)


def _raise(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be read ({reason(error)})") from error


def is_valid_name(value: str) -> bool:
    """Whether a name can be printed, written in every format and read back: any script, no control characters.

    At most 1000 characters, at least one of them visible.
    """
    if not value.strip() or len(value) > 1000 or "\ufffe" in value or "\uffff" in value:
        return False
    return value.isprintable() or not any(unicodedata.category(character) in _UNWRITABLE for character in value)


def _show_box(box: Floats) -> str:
    return "(" + ", ".join(f"{corner:.6g}" for corner in box.tolist()) + ")"
