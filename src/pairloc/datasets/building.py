"""The one place where what a reader found becomes a `Dataset`: names, ids, paths and boxes are checked here."""

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
EDGE = 1.0  # px a box may leave its image unremarked: formats differ by one in where they count from
_LONGEST_SIDE = 1 << 20
_FARTHEST = 1e7  # px; no image reaches so far
_UNWRITABLE = ("Cc", "Cs", "Zl", "Zp")  # control characters, half characters, line and paragraph ends


@dataclass(frozen=True)
class Parsed:
    """What a reader made of a file: a data set, and its boxes (n) in columns."""

    dataset: Dataset
    image: Ints  # (n,)
    label: Ints  # (n,)
    boxes: Floats  # (n, 4)
    ignored: Bools  # (n,)
    score: Floats  # (n,) NaN where there is none
    places: tuple[object, ...]  # (n,) where each box stands


class Builder:
    """Takes images, classes, tags and boxes from a reader in any order the format has them.

    Whatever cannot be used becomes a finding and is left out, so that a reader can go on and `doctor` can name
    everything at once; `read` turns the first error into an InputError. A place may be anything whose text names it:
    it becomes text only when there is something to say.
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
        """Add an image; its index, or -1 where it cannot be one. Without an id images count from 1.

        What belongs to an image that was refused is not reported again: boxes of a second entry for one file go to the
        first, those of an entry without a usable name go nowhere.
        """
        name = self.file_name(file, place)
        if name is None:
            refused = whole(id)
            if isinstance(refused, int | str):
                self._by_id.setdefault(refused, -1)
            return -1
        if id is None:
            id = next(number_ for number_ in itertools.count(len(self.images) + 1) if number_ not in self._by_id)
        id = whole(id)
        if isinstance(id, bool) or not (isinstance(id, int) or (isinstance(id, str) and is_text(id))):
            return self._refuse("bad-entry", place, f"image id is {shown(id)}, not a number or text")
        if id in self._by_id:
            return self._refuse("duplicate-id", place, f"image id {shown(id)} was used before")
        if name in self._by_file:
            self._refuse("duplicate-image", place, f"{name!r} was listed before")
            self._by_id[id] = self._by_file[name]
            return self._by_file[name]
        self._by_id[id] = self._by_file[name] = len(self.images)
        self.images.append(Image(id, name, self._size(size, place)))
        self._tags.append(set())
        return len(self.images) - 1

    def find_image(self, id: object) -> int | None:
        """The index of the image with this id."""
        id = whole(id)
        return self._by_id.get(id) if isinstance(id, int | str) and not isinstance(id, bool) else None

    def find_file(self, name: str) -> int | None:
        """The index of the image with this (already checked) file name."""
        return self._by_file.get(name)

    def file_name(self, file: object, place: object) -> str | None:
        """An image's name below the image folder, or None with a finding."""
        if not isinstance(file, str) or not is_text(file):
            self.findings.add("bad-entry", place, f"the file name is {shown(file)}")
            return None
        path = PurePosixPath(file.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or (path.parts and path.parts[0].endswith(":")):
            self.findings.add("path-outside", place, f"the file name is {shown(file)}")
            return None
        if not path.name or max(len(part.encode()) for part in path.parts) > 255:
            self.findings.add("bad-entry", place, f"the file name is {shown(file)}")
            return None
        return path.as_posix()

    def label(self, name: object, place: object, *, id: int | None = None) -> int:
        """The index of a class, added where it is new; -1 where the name cannot be one."""
        if not isinstance(name, str) or not is_text(name):
            return self._refuse("bad-entry", place, f"the class name is {shown(name)}")
        name = name.strip()
        if name not in self.classes:
            self.classes[name] = len(self.classes)
            self._class_ids.append(len(self.classes) if id is None else id)
        return self.classes[name]

    def tag(self, image: int, label: int) -> None:
        """Tag an image; indices of -1 were already reported and do nothing."""
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
        """Add a box (x1, y1, x2, y2) of a class; unless it is ignored the image gets the tag too."""
        if image < 0 or label < 0:
            return
        x1, y1, x2, y2 = map(number, corners) if len(corners) == 4 else (None,) * 4
        if x1 is None or y1 is None or x2 is None or y2 is None:
            self._refuse("bad-entry", place, f"the box is {shown(corners)}, not four numbers")
            return
        value = math.nan if score is None else number(score)
        if value is None or (score is not None and not math.isfinite(value)):
            self._refuse("bad-entry", place, f"the score is {shown(score)}, not a finite number")
            return
        if ignored:
            self.findings.add("crowd-box", place, "is marked as crowd or difficult")
        self._rows.append((image, label, x1, y1, x2, y2, ignored, value))
        self._places.append(place)

    def look_in(self, folders: Iterable[Path]) -> None:
        """Settle on the first of these folders that holds one of the images, unless the user named one."""
        if self.folder is not None:
            return
        some = self.images[:: max(1, len(self.images) // 200)]
        whole_paths = (folder.absolute() for folder in folders)
        self.folder = next((f for f in whole_paths if any((f / image.file).is_file() for image in some)), None)

    def build(self, place: object) -> Parsed:
        """Everything that was added and could be kept."""
        if not self.images and not self.findings.errors:
            self.findings.add("no-images", place, "there is no image in it")
        columns = list(zip(*self._rows, strict=True)) or [()] * 8
        image, label = np.array(columns[0], dtype=np.int64), np.array(columns[1], dtype=np.int64)
        boxes = np.array(columns[2:6], dtype=np.float64).reshape(4, -1).T.copy()  # (n, 4)
        ignored, score = np.array(columns[6], dtype=np.bool_), np.array(columns[7], dtype=np.float64)
        for index, tag in zip(image[~ignored].tolist(), label[~ignored].tolist(), strict=True):
            self._tags[index].add(tag)  # also where the box itself is of no use: the object is there
        boxes, kept = self._checked(boxes, image)
        dataset = Dataset(
            tuple(self.images),
            tuple(self.classes),
            tuple(tuple(sorted(tags)) for tags in self._tags),
            tuple(self._unique_class_ids()),
            self.folder,
        )
        places = tuple(itertools.compress(self._places, kept.tolist()))
        return Parsed(dataset, image[kept], label[kept], boxes[kept], ignored[kept], score[kept], places)

    def _checked(self, boxes: Floats, image: Ints) -> tuple[Floats, Bools]:
        """Boxes (n, 4) cut to their images, and which of them (n,) can be kept."""
        unknown = (math.inf, math.inf)
        sizes = np.array([entry.size or unknown for entry in self.images], dtype=np.float64).reshape(-1, 2)[image]
        finite = np.asarray((np.abs(boxes) <= _FARTHEST).all(axis=1))
        negative = finite & np.asarray((boxes[:, 2:] < boxes[:, :2]).any(axis=1))
        sound = finite & ~negative
        cut = clip(boxes, sizes)
        outside = sound & np.asarray(np.abs(cut - boxes).max(axis=1, initial=0) > EDGE)
        empty = sound & np.asarray((cut[:, 2:] <= cut[:, :2]).any(axis=1))
        for kind, mask, problem in (
            ("not-a-number", ~finite, "the box has a number that is not finite, or absurd"),
            ("negative-size", negative, "the box has a negative width or height"),
            ("box-outside", outside, "the box leaves its image"),
            ("box-without-area", empty, "the box has no area in its image"),
        ):
            for row in np.flatnonzero(mask).tolist():
                self.findings.add(kind, self._places[row], f"{problem}: {_show_box(boxes[row])}")
        return cut, sound & ~empty

    def _unique_class_ids(self) -> list[int]:
        ids = self._class_ids
        return ids if len(set(ids)) == len(ids) else list(range(1, len(ids) + 1))

    def _size(self, size: tuple[object, object] | None, place: object) -> Size | None:
        if size is None or size == (None, None):
            return None
        width, height = (number(side) for side in size)
        if width is None or height is None or not (1 <= width <= _LONGEST_SIDE and 1 <= height <= _LONGEST_SIDE):
            self.findings.add("bad-entry", place, f"the size is {shown(size[0])} x {shown(size[1])}")
            return None
        return int(width), int(height)

    def _refuse(self, kind: str, place: object, problem: str) -> int:
        self.findings.add(kind, place, problem)
        return -1


def number(value: object) -> float | None:
    """A JSON number, or text that is one, as a float; None for anything else."""
    if type(value) is float:  # by far the most frequent
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str) or "_" in str(value)[:60]:
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def whole(value: object) -> object:
    """An id such as 3.0 as the whole number it is; anything else as it stands."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """The names of all files of these endings below a folder, in order, with forward slashes.

    Links to folders are followed, once each; what is hidden is passed over.
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
    """The names of all images below a folder."""
    return files_below(folder, SUFFIXES)


def _raise(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be read ({reason(error)})") from error


def is_text(value: str) -> bool:
    """Whether a name can be printed, written in every format and read back: any script, no control characters."""
    if not value.strip() or len(value) > 1000 or "\ufffe" in value or "\uffff" in value:
        return False
    return value.isprintable() or not any(unicodedata.category(letter) in _UNWRITABLE for letter in value)


def _show_box(box: Floats) -> str:
    return "(" + ", ".join(f"{corner:.6g}" for corner in box.tolist()) + ")"
