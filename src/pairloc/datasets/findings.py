"""Findings: the problems of a data set, each of a kind with a severity and a remedy."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pairloc.errors import InputError

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem: an error makes the data unusable; the remedy of a warning says how it is handled."""

    severity: Severity
    title: str
    remedy: str


KINDS = {
    "no-images": Kind("error", "no images", "check the path and --format"),
    "missing-image": Kind(
        "error", "images that are not in the image folder", "correct the name, or pass the folder with --images"
    ),
    "unreadable-image": Kind("error", "unreadable images", "replace the file, or remove its entry"),
    "truncated-image": Kind("error", "truncated images", "copy the file again, or remove its entry"),
    "huge-image": Kind("error", "images with too many pixels", "scale the image down"),
    "path-outside": Kind("error", "file names that point outside the image folder", "use names below the image folder"),
    "duplicate-id": Kind("error", "duplicate ids", "give every entry a unique id"),
    "duplicate-image": Kind("error", "images listed more than once", "keep one entry per file, with all of its labels"),
    "unknown-category": Kind("error", "unknown categories", "add the category, or correct the annotation"),
    "unknown-image": Kind("error", "tags or boxes without an image", "add the image, or remove the annotation"),
    "not-a-number": Kind("error", "NaN or infinite numbers", "correct or remove the annotation"),
    "negative-size": Kind("error", "negative widths or heights", "swap the corners, or remove the annotation"),
    "bad-file": Kind("error", "files that cannot be read", "correct or remove the file"),
    "bad-entry": Kind("error", "malformed entries", "correct the entry"),
    "wrong-size": Kind(
        "error",
        "sizes that differ from the image file",
        "correct width and height; the boxes may belong to another image",
    ),
    "rotated-boxes": Kind(
        "error",
        "sizes given before the EXIF rotation of the image",
        "save the image upright, or annotate the upright image",
    ),
    "no-image-files": Kind("warning", "annotations whose images were not found", "pass their folder with --images"),
    "missing-split": Kind("warning", "splits outside the folder of the data set", "correct or remove the entry"),
    "duplicate-class": Kind(
        "warning", "categories with the same name", "they are read as one class; rename one if they differ"
    ),
    "other-mark": Kind(
        "warning", "annotations that are not boxes, polygons or tags", "they are skipped; draw boxes or polygons"
    ),
    "box-outside": Kind("warning", "boxes that extend beyond the image", "they are clipped to it; check their scale"),
    "box-without-area": Kind("warning", "boxes without area", "they are skipped; correct or remove them"),
    "crowd-box": Kind(
        "warning",
        "crowd or difficult boxes",
        "they give no tag and are ignored; draw a box for each object to use them",
    ),
    "no-tag": Kind("warning", "images without a tag", "they are used as negatives only; tag them if they show a class"),
    "similar-class": Kind(
        "warning", "classes whose names may mean the same", "give them one name, or they are searched for separately"
    ),
    "identical-image": Kind(
        "warning", "image files with the same content", "keep one with all of its tags; copies confirm each other"
    ),
    "rare-class": Kind(
        "warning", "classes with fewer than two images", "add images; a single image cannot be compared with others"
    ),
    "rotated-image": Kind(
        "warning",
        "images with an EXIF rotation",
        "they are rotated upright; check that the boxes fit the upright image",
    ),
    "unlisted-image": Kind(
        "warning", "images without an entry in the annotations", "add entries for them, or ignore this"
    ),
    "guessed-separator": Kind(
        "warning", "cells that may contain one label or several", "separate labels with ';', or name the column 'label'"
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem and its place in the data: file and line, index or id."""

    kind: str
    place: str
    problem: str

    @property
    def severity(self) -> Severity:
        """Severity of the kind of this finding."""
        return KINDS[self.kind].severity

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}; {KINDS[self.kind].remedy}"


class Findings:
    """Collects the findings of a reader: `read` raises the first error, `doctor` lists everything."""

    def __init__(self) -> None:
        self._found: list[Finding] = []

    def add(self, kind: str, place: object, problem: str) -> None:
        """Add a finding of a kind in `KINDS`; `place` may be any object, `str(place)` names the file and line."""
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
        """Number of findings of each kind."""
        return Counter(finding.kind for finding in self._found)

    def raise_first_error(self) -> None:
        """If there are errors, raise the first as an InputError that tells how many more there are."""
        if errors := self.errors:
            more = f" ({len(errors) - 1} more; 'pairloc doctor' lists them)" if len(errors) > 1 else ""
            raise InputError(f"{errors[0]}{more}")
