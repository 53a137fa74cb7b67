"""What is wrong with a data set: every kind of finding, how grave it is, and its remedy."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pairloc.errors import InputError

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A sort of trouble. An error makes the data unusable; a warning will hurt, and says how it is handled."""

    severity: Severity
    title: str
    remedy: str


KINDS = {
    "no-images": Kind("error", "no images", "check the path and --format"),
    "missing-image": Kind(
        "error", "images that are not in the image folder", "correct the name, or name the folder with --images"
    ),
    "unreadable-image": Kind("error", "unreadable images", "replace the file, or remove its entry"),
    "truncated-image": Kind("error", "truncated images", "copy the file again, or remove its entry"),
    "huge-image": Kind("error", "images that unpack to gigapixels", "scale the image down"),
    "path-outside": Kind(
        "error", "file names that point outside the image folder", "use names below the image folder"
    ),
    "duplicate-id": Kind("error", "duplicate ids", "give every entry an id of its own"),
    "duplicate-image": Kind("error", "two images of one name", "keep one entry per file, with all of its labels"),
    "unknown-category": Kind("error", "unknown categories", "add the category, or correct the annotation"),
    "unknown-image": Kind("error", "tags or boxes without an image", "add the image, or remove the annotation"),
    "not-a-number": Kind("error", "NaN or infinite numbers", "correct or remove the annotation"),
    "negative-size": Kind("error", "negative widths or heights", "swap the corners, or remove the annotation"),
    "bad-file": Kind("error", "files that cannot be read", "correct or remove the file"),
    "bad-entry": Kind("error", "malformed entries", "correct the entry"),
    "wrong-size": Kind(
        "error", "sizes that are not the image's", "correct width and height: the boxes may be of another image"
    ),
    "rotated-boxes": Kind(
        "error",
        "sizes given for the image as stored, which is shown rotated (EXIF)",
        "save the image upright, or annotate it as it is shown",
    ),
    "no-image-files": Kind(
        "warning", "annotations whose images were not found", "name the folder they lie in with --images"
    ),
    "missing-split": Kind("warning", "splits that are not below the data set's folder", "correct or remove the entry"),
    "duplicate-class": Kind("warning", "categories of one name", "they are read as one class; rename one if need be"),
    "other-mark": Kind("warning", "marks that are not boxes", "they are left out; draw boxes or polygons"),
    "box-outside": Kind("warning", "boxes that leave the image", "they are cut at its edge; check their scale"),
    "box-without-area": Kind("warning", "boxes without area", "they are left out; correct or remove them"),
    "crowd-box": Kind(
        "warning", "crowd or difficult boxes", "they give no tag and do not count; box objects singly if they should"
    ),
    "no-tag": Kind("warning", "images without a tag", "they serve as negatives only; tag them if they show a class"),
    "rare-class": Kind(
        "warning", "classes with fewer than two images", "add images: one image has nothing to be compared with"
    ),
    "rotated-image": Kind(
        "warning", "images stored rotated (EXIF)", "they are turned upright; check that your boxes fit that view"
    ),
    "unlisted-image": Kind("warning", "images that no annotation names", "add them, or ignore this"),
    "guessed-separator": Kind(
        "warning", "labels that may be one name or several", "separate labels by ';', or name the column 'label'"
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong at one place: file and line, index or id."""

    kind: str
    place: str
    problem: str

    @property
    def severity(self) -> Severity:
        """How grave it is."""
        return KINDS[self.kind].severity

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}; {KINDS[self.kind].remedy}"


class Findings:
    """Collects findings while a data set is read, so that one reader serves `read` and `doctor` alike."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def add(self, kind: str, place: object, problem: str) -> None:
        """Note that `problem` was found at `place`, whose text names it; the kind brings severity and remedy."""
        assert kind in KINDS
        self._found.append(Finding(kind, str(place), problem))

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def errors(self) -> list[Finding]:
        """The findings that make the data unusable."""
        return [finding for finding in self._found if finding.severity == "error"]

    def counts(self) -> Counter[str]:
        """How many of each kind."""
        return Counter(finding.kind for finding in self._found)

    def raise_first_error(self) -> None:
        """Raise the first error as an InputError that says how many more there are."""
        if errors := self.errors:
            more = f" ({len(errors) - 1} more; 'pairloc doctor' lists them)" if len(errors) > 1 else ""
            raise InputError(f"{errors[0]}{more}")
