"""The doctor: summarise a data set and find the problems that would matter later."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from pairloc.boxes import Size
from pairloc.datasets.building import EDGE_TOLERANCE, Parsed, images_below
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.findings import KINDS, Findings
from pairloc.datasets.names import groups_of_same_names
from pairloc.errors import InputError, shown
from pairloc.formats.reading import annotation_files, parse, recognise
from pairloc.images import Header, ImageError, read_header
from pairloc.io import sha256

Track = Callable[[Iterable[tuple[str, Path]], int], Iterable[tuple[str, Path]]]


@dataclass(frozen=True)
class Summary:
    """Statistics of one data set."""

    file: str
    format: str
    folder: str | None  # image folder, None if it was not found
    images: int
    classes: int
    boxes: int
    tags_per_image: float
    most_tags: int  # largest number of tags of an image
    images_per_class: dict[str, int]
    box_sizes: dict[str, int]  # number of boxes by area: small < 32^2 <= medium < 96^2 <= large, in pixels


@dataclass
class Report:
    """The summaries of one or several data sets, and the findings in them."""

    summaries: list[Summary] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    checked: int = 0  # number of image files checked

    @property
    def usable(self) -> bool:
        """Whether the data can be used: there are no errors, only warnings."""
        return not self.findings.errors

    def to_json(self) -> dict[str, object]:
        """The report as a value for JSON."""
        findings = [
            {"kind": finding.kind, "severity": finding.severity, "place": finding.place, "problem": finding.problem,
             "remedy": KINDS[finding.kind].remedy}
            for finding in self.findings
        ]  # fmt: skip
        datasets = [asdict(summary) for summary in self.summaries]
        return {"usable": self.usable, "checked": self.checked, "datasets": datasets, "findings": findings}


def examine(
    path: Path,
    format: str = "auto",
    images: Path | None = None,
    *,
    deep: bool = False,
    track: Track = lambda pairs, total: pairs,
) -> Report:
    """Read a data set, or every data set of a folder with several, and check its images.

    Only image headers are read; `deep` also decodes the pixels. `track` may wrap the loop over images in a progress
    bar. Raises an InputError if there is no data set, or the only one cannot be read.
    """
    report = Report()
    datasets = []
    sources = _sources(path, format)
    for file, file_format in sources:
        try:
            parsed = parse(file, file_format, images, report.findings)
        except InputError as error:
            if len(sources) == 1:
                raise
            report.findings.add("bad-file", file, str(error).removeprefix(f"{file}: "))
            continue
        report.summaries.append(_summary(file, file_format, parsed))
        _check_tags(str(file), parsed.dataset, report.findings)
        if parsed.dataset.folder is None and len(parsed.dataset):
            report.findings.add("no-image-files", file, "none of its images were found next to it")
        datasets.append((file, parsed))
    _check_images(datasets, report, deep, track)
    return report


def _sources(path: Path, format: str) -> list[tuple[Path, str]]:
    if format != "auto":
        return [(path, format)]
    try:
        return [recognise(path)]
    except InputError:
        files = annotation_files(path)
        if len(files) < 2:
            raise
        return [recognise(file) for file in files]


def _summary(file: Path, format: str, parsed: Parsed) -> Summary:
    dataset = parsed.dataset
    areas = np.prod(parsed.boxes[:, 2:] - parsed.boxes[:, :2], axis=1)
    small, large = int((areas < 32**2).sum()), int((areas >= 96**2).sum())
    tags = [len(entry) for entry in dataset.tags]
    return Summary(
        file=str(file),
        format=format,
        folder=None if dataset.folder is None else str(dataset.folder),
        images=len(dataset),
        classes=len(dataset.classes),
        boxes=len(parsed.boxes),
        tags_per_image=round(sum(tags) / max(len(tags), 1), 2),
        most_tags=max(tags, default=0),
        images_per_class={
            name: len(positives) for name, positives in zip(dataset.classes, dataset.positives, strict=True)
        },
        box_sizes={"small": small, "medium": len(areas) - small - large, "large": large},
    )


def _check_tags(place: str, dataset: Dataset, findings: Findings) -> None:
    for image, tags in zip(dataset.images, dataset.tags, strict=True):
        if not tags:
            findings.add("no-tag", f"{place}: image {image.id}", f"{image.file!r} has no tag")
    for name, positives in zip(dataset.classes, dataset.positives, strict=True):
        if len(positives) < 2:
            findings.add("rare-class", place, f"class {name!r} has {len(positives)} image{'s' * (len(positives) != 1)}")
    for group in groups_of_same_names(dataset.classes):
        findings.add("similar-class", place, f"{', '.join(map(shown, group))} may be the same class")


def _check_images(sources: list[tuple[Path, Parsed]], report: Report, deep: bool, track: Track) -> None:
    """Check every image file once, even if several data sets list it."""
    entries: dict[Path, list[Image]] = {}
    sizes: dict[Path, Size] = {}
    datasets = [parsed.dataset for _, parsed in sources]
    for dataset in datasets:
        for index, image in enumerate(dataset.images) if dataset.folder is not None else ():
            entries.setdefault(dataset.path(index), []).append(image)
    report.checked = len(entries)
    # Some readers open the images themselves and have already reported the unreadable ones.
    reported = {(finding.kind, finding.place) for finding in report.findings}
    for name, path in track(((str(path), path) for path in entries), len(entries)):
        try:
            header = read_header(path, deep=deep)
        except ImageError as error:
            if (error.kind, name) not in reported:
                report.findings.add(error.kind, name, str(error))
            continue
        sizes[path] = header.size
        if header.rotated:
            report.findings.add("rotated-image", name, f"has EXIF orientation {header.orientation}")
        for image in entries[path]:
            _check_size(image, header, name, report.findings)
    _check_copies(list(sizes), report.findings)
    for _, parsed in sources:
        _check_boxes(parsed, sizes, report.findings)
    folders = {parsed.dataset.folder for file, parsed in sources if _is_image_folder(parsed.dataset.folder, file)}
    for folder in sorted(folder for folder in folders if folder is not None):
        for file in images_below(folder):
            if folder / file not in entries:
                report.findings.add(
                    "unlisted-image", str(folder / file), "is in the image folder, but not in the annotations"
                )


def _check_copies(paths: list[Path], findings: Findings) -> None:
    """Report files of the same content; only those of the same length are read."""
    by_length: dict[int, list[Path]] = {}
    for path in paths:
        by_length.setdefault(path.stat().st_size, []).append(path)
    first: dict[str, Path] = {}
    for path in chain.from_iterable(group for group in by_length.values() if len(group) > 1):
        original = first.setdefault(sha256(path), path)
        if original != path:
            findings.add("identical-image", str(path), f"has the same content as {original}")


def _is_image_folder(folder: Path | None, file: Path) -> bool:
    """Whether a folder is only for the images of this data set: not so if it is a parent of the data set's folder."""
    return folder is not None and folder.resolve() not in file.resolve().parent.parents


def _check_boxes(parsed: Parsed, sizes: dict[Path, Size], findings: Findings) -> None:
    """Check boxes against the image files where the annotations give no image size."""
    dataset = parsed.dataset
    unsized = {index for index, image in enumerate(dataset.images) if image.size is None and dataset.folder is not None}
    for image, box, place in zip(parsed.image.tolist(), parsed.boxes, parsed.places, strict=True):
        size = sizes.get(dataset.path(image)) if image in unsized else None
        if size is not None and (box[2:] > np.array(size) + EDGE_TOLERANCE).any():
            findings.add("box-outside", place, f"the box extends beyond its image of {size[0]} x {size[1]} pixels")


def _check_size(image: Image, header: Header, place: str, findings: Findings) -> None:
    if image.size is None or image.size == header.size:
        return
    given, actual = (f"{width} x {height}" for width, height in (image.size, header.size))
    kind = "rotated-boxes" if image.size == header.stored else "wrong-size"
    findings.add(kind, place, f"the annotations give image {image.id} as {given}, but the upright image is {actual}")
