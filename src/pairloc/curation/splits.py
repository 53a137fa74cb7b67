"""Splits of annotated data into a source, to learn from, and a target, to localize."""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from pairloc.boxes import Bools, Floats, Ints
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.formats.coco import to_coco
from pairloc.formats.csv import write_tags
from pairloc.io import write_json

Annotated = tuple[Dataset, GroundTruth]
Mixed = Literal["source", "target", "both"]

COCO17 = (
    "airplane", "bus", "cat", "dog", "cow", "elephant", "umbrella", "tie", "snowboard", "skateboard", "cup", "knife",
    "cake", "couch", "keyboard", "sink", "scissors",
)  # fmt: skip
PLAYING17 = (
    "train", "boat", "horse", "sheep", "zebra", "giraffe", "suitcase", "handbag", "surfboard", "tennis racket", "bowl",
    "fork", "pizza", "bed", "laptop", "refrigerator", "vase",
)  # fmt: skip


@dataclass(frozen=True)
class Split:
    """A source, a target whose ground truth is for evaluation only, and optionally a test set."""

    source: Annotated
    target: Annotated
    test: Annotated | None = None

    def counts(self) -> dict[str, dict[str, int]]:
        """The numbers of images, boxes and classes of every part."""
        parts = {"source": self.source, "target": self.target} | ({"test": self.test} if self.test else {})
        return {
            name: {"images": len(dataset), "boxes": len(truth), "classes": len(dataset.classes)}
            for name, (dataset, truth) in parts.items()
        }

    def write(self, folder: Path) -> None:
        """Write `source.json`, `target_tags.csv`, `target_truth.json` and, with a test set, `test_truth.json`."""
        files = {"source": self.source, "target_truth": self.target} | ({"test_truth": self.test} if self.test else {})
        for name, (dataset, truth) in files.items():
            content = to_coco(
                dataset,
                truth.image,
                truth.label,
                truth.boxes,
                ignored=truth.ignored,
                description=f"pairloc {name}",
            )
            write_json(folder / f"{name}.json", content)
        write_tags(folder / "target_tags.csv", self.target[0])


def split_coco17(train: Annotated, val: Annotated | None = None) -> Split:
    """The COCO protocol of the paper: 17 target classes, all others are source classes; crowd boxes do not count.

    Source: training images with a source-class box; their target-class boxes are removed. Target: training images with
    target-class boxes only, and validation images with a target-class box.
    """
    parts = [train] if val is None else [train, val]
    dataset, truth = merge(parts)
    targets = [label for label, name in enumerate(dataset.classes) if name in COCO17]
    is_train = np.arange(len(dataset)) < len(train[0])
    has_source, has_target = _class_masks(dataset, targets)
    return Split(
        source=restrict(dataset, truth, is_train & has_source, _source_labels(dataset, targets)),
        target=restrict(dataset, truth, has_target & ~(is_train & has_source), targets),
    )


def split_play(train: Annotated, val: Annotated | None = None) -> Split:
    """The COCO protocol within its source classes, for choosing settings without looking at the target.

    17 source classes are a stand-in target (playing classes), 46 are taught; boxes of the 17 target classes are
    removed. Source: training images with a taught class. Target: training images with playing classes only ("clean"),
    and validation images with a playing class and without a target class ("cluttered").
    """
    parts = [train] if val is None else [train, val]
    dataset, truth = merge(parts)
    playing = [label for label, name in enumerate(dataset.classes) if name in PLAYING17]
    taught = [label for label, name in enumerate(dataset.classes) if name not in (*PLAYING17, *COCO17)]
    is_train = np.arange(len(dataset)) < len(train[0])
    others, has_playing = _class_masks(dataset, playing)
    _, has_taught = _class_masks(dataset, taught)
    _, has_target = _class_masks(dataset, [c for c, name in enumerate(dataset.classes) if name in COCO17])
    return Split(
        source=restrict(dataset, truth, is_train & has_taught, taught),
        target=restrict(dataset, truth, has_playing & np.where(is_train, ~others, ~has_target), playing),
    )


@dataclass(frozen=True)
class PlayingSplit:
    """A source without some of its classes, which play the target, and which of the playing images are cluttered."""

    source: Annotated
    target: Annotated
    cluttered: Bools  # (images of the target,)


@dataclass(frozen=True)
class PlayingImages:
    """Masks (n,) of the images of a source: those that still teach, and those that play the target."""

    source: Bools
    target: Bools
    cluttered: Bools  # playing images that show other classes too, or no playing class at all


def playing_images(
    dataset: Dataset, playing: Sequence[int], images: int, generator: np.random.Generator
) -> PlayingImages:
    """Draw the images on which some classes of a source, `playing`, play the target, by the rule of the COCO protocol.

    Images that show playing classes alone are clean. Of those that show other classes too at most a fifth of all images
    is held aside: they are cluttered. The others remain source images. Each kind gets about half of the `images`, with
    about as many of every class. A single class gets as many images without it, which are held aside too.
    """
    others, shown = _class_masks(dataset, playing)
    clean = _balanced(dataset, np.flatnonzero(shown & ~others), playing, images // 2, generator)
    room = min(images - len(clean), len(dataset) // 5)
    cluttered = _balanced(dataset, np.flatnonzero(shown & others), playing, room, generator)
    without = np.flatnonzero(others & ~shown)
    count = min(len(clean) + len(cluttered), len(without) // 5) if len(playing) == 1 else 0
    untagged = generator.permutation(without)[:count]
    target = np.zeros(len(dataset), dtype=np.bool_)
    target[[*clean, *cluttered, *untagged]] = True
    return PlayingImages(others & ~target, target, others & target)


def split_playing(
    annotated: Annotated, playing: Sequence[int], images: int, generator: np.random.Generator
) -> PlayingSplit:
    """Let some classes of a source, `playing`, play the target on the images that `playing_images` draws.

    Source images keep no box of a playing class, playing images only those.
    """
    dataset, truth = annotated
    drawn = playing_images(dataset, playing, images, generator)
    return PlayingSplit(
        source=restrict(dataset, truth, drawn.source, _source_labels(dataset, playing)),
        target=restrict(dataset, truth, drawn.target, playing),
        cluttered=drawn.cluttered[drawn.target],
    )


def _balanced(
    dataset: Dataset, candidates: Ints, classes: Sequence[int], limit: int, generator: np.random.Generator
) -> list[int]:
    """Draw at most `limit` of some images (n,), with about as many of every class."""
    count: Counter[int] = Counter()
    share, drawn = -(-limit // len(classes)), list[int]()
    for image in generator.permutation(candidates).tolist():
        tags = set(dataset.tags[image]) & set(classes)
        if len(drawn) < limit and any(count[label] < share for label in tags):
            drawn.append(image)
            count.update(tags)
    return drawn


def split_coco40(
    train: Annotated, val: Annotated | None, generator: np.random.Generator, *, images_per_class: int = 650
) -> Split:
    """ILSVRC's shape on COCO: in alphabetical order, the first half of the classes is source, the second half target.

    Training images are drawn at random for each half. An image is kept if it shows a class of the half that still has
    fewer than `images_per_class` images; boxes of the other half are removed. The test set is the whole
    validation set.
    """
    dataset, truth = merge([train] if val is None else [train, val])
    if len(dataset.classes) < 2:
        raise InputError("this split needs at least two classes")
    is_train = np.arange(len(dataset)) < len(train[0])
    order = sorted(range(len(dataset.classes)), key=lambda label: dataset.classes[label].casefold())
    sides = [sorted(order[: len(order) // 2]), sorted(order[len(order) // 2 :])]
    shows = _box_counts(dataset, truth) > 0  # (images, classes)
    drawn = []
    for side in sides:
        used, missing = np.zeros(len(dataset), dtype=np.bool_), np.full(len(side), images_per_class)
        for image in generator.permutation(len(train[0])):
            shown = shows[image, side]
            if (shown & (missing > 0)).any():
                used[image] = True
                missing -= shown
        drawn.append(restrict(dataset, truth, used, side))
    source, target = drawn
    return Split(source, target, None if val is None else restrict(dataset, truth, ~is_train, sides[1]))


def split_classes(annotated: Annotated, target: Sequence[str], mixed: Mixed = "source") -> Split:
    """Split any data set by target class names.

    `mixed` says where images with source and target classes go. Raises an InputError if a target class is unknown or
    no source class is left.
    """
    dataset, truth = annotated
    for name in target:
        if name not in dataset.classes:
            names = ", ".join(sorted(dataset.classes)[:40])
            raise InputError(f"there is no class {name!r} in this data set; its classes are {names}")
    targets = [dataset.classes.index(name) for name in dict.fromkeys(target)]
    if len(targets) == len(dataset.classes):
        raise InputError("all classes are target classes; leave some as source classes")
    has_source, has_target = _class_masks(dataset, targets)
    both = has_source & has_target
    return Split(
        source=restrict(dataset, truth, has_source & ~(both & (mixed == "target")), _source_labels(dataset, targets)),
        target=restrict(dataset, truth, has_target & ~(both & (mixed == "source")), targets),
    )


def split_ilsvrc100(
    annotated: Annotated,
    generator: np.random.Generator,
    *,
    val1: Collection[str] | None = None,
    boxes_per_class: int = 1000,
) -> Split:
    """The ILSVRC 2013 protocol of the paper: in alphabetical order, the first half of the classes is source.

    Images are in `train/` and `val/`. `val1` lists the images of the first half of the validation set; by default the
    validation set is halved at random with balanced classes. Training images are added to val1 until every class has
    `boxes_per_class` boxes. Source and target are the images of this set with a box of their classes; the test set
    is the whole of val2, with its boxes of target classes.
    """
    dataset, truth = annotated
    if len(dataset.classes) < 2:
        raise InputError("an ILSVRC split needs at least two classes")
    order = sorted(range(len(dataset.classes)), key=lambda label: dataset.classes[label].casefold())
    targets = sorted(order[len(order) // 2 :])
    counts = _box_counts(dataset, truth)  # (images, classes)
    is_val = np.array([image.file.startswith("val/") for image in dataset.images], dtype=np.bool_)
    if val1 is None:
        in_val1 = np.zeros(len(dataset), dtype=np.bool_)
        in_val1[np.flatnonzero(is_val)[_balanced_half(counts[is_val] > 0, generator)]] = True
    else:
        in_val1 = is_val & np.array([Path(image.file).stem in val1 for image in dataset.images], dtype=np.bool_)
    used = in_val1.copy()
    for label in order:
        candidates = generator.permutation(np.flatnonzero(~is_val & ~used & (counts[:, label] > 0)))
        missing = boxes_per_class - counts[used, label].sum()
        gained = np.concatenate([[0], np.cumsum(counts[candidates, label])])[:-1]  # boxes gained before each candidate
        used[candidates[gained < missing]] = True
    has_source, has_target = _class_masks(dataset, targets)
    return Split(
        source=restrict(dataset, truth, used & has_source, _source_labels(dataset, targets)),
        target=restrict(dataset, truth, used & has_target, targets),
        test=restrict(dataset, truth, is_val & ~in_val1, targets),
    )


def restrict(dataset: Dataset, truth: GroundTruth, images: Bools, labels: Sequence[int]) -> Annotated:
    """Restrict a data set to the images of a mask (n,) and to some classes; ids stay unchanged."""
    image_map = np.where(images, np.cumsum(images) - 1, -1)
    label_map = np.full(len(dataset.classes), -1)
    label_map[list(labels)] = np.arange(len(labels))
    kept = np.flatnonzero(images).tolist()
    tags = (tuple(label_map[list(dataset.tags[index])].tolist()) for index in kept)
    restricted = Dataset(
        tuple(dataset.images[index] for index in kept),
        tuple(dataset.classes[label] for label in labels),
        tuple(tuple(sorted(label for label in entry if label >= 0)) for entry in tags),
        tuple(dataset.class_ids[label] for label in labels),
        dataset.folder,
    )
    return restricted, truth.relabelled(image_map, label_map)


def merge(parts: Sequence[Annotated]) -> Annotated:
    """Merge data sets; classes are matched by name, file names get their folder as a prefix if the folders differ.

    Raises an InputError if two images have the same id or file.
    """
    classes = tuple(dict.fromkeys(name for dataset, _ in parts for name in dataset.classes))
    ids = {
        name: id for dataset, _ in reversed(parts) for name, id in zip(dataset.classes, dataset.class_ids, strict=True)
    }
    if len(set(ids.values())) < len(ids):
        ids = {name: id for id, name in enumerate(classes, start=1)}
    folder, prefixes = _common_folder([dataset.folder for dataset, _ in parts])
    images: list[Image] = []
    tags: list[tuple[int, ...]] = []
    truths: list[GroundTruth] = []
    for (dataset, truth), prefix in zip(parts, prefixes, strict=True):
        labels = np.array([classes.index(name) for name in dataset.classes], dtype=np.int64)
        truths.append(truth.relabelled(np.arange(len(dataset)) + len(images), labels))
        images += [replace(image, file=prefix + image.file) for image in dataset.images]
        tags += [tuple(sorted(labels[list(entry)].tolist())) for entry in dataset.tags]
    for what in ("id", "file"):
        [(value, times)] = Counter(getattr(image, what) for image in images).most_common(1) or [("", 0)]
        if times > 1:
            raise InputError(
                f"two of these data sets have an image with {what} {value!r} and cannot be merged; make it unique"
            )
    columns = [
        np.concatenate([getattr(truth, name) for truth in truths]) for name in ("image", "label", "boxes", "ignored")
    ]
    return Dataset(tuple(images), classes, tuple(tags), tuple(ids[name] for name in classes), folder), GroundTruth(
        *columns
    )


def _common_folder(folders: list[Path | None]) -> tuple[Path | None, list[str]]:
    """The deepest folder that contains all image folders, and the prefix of each below it."""
    resolved = [folder.resolve() for folder in folders if folder is not None]
    if len(resolved) < len(folders) or len(set(resolved)) == 1:
        return (resolved[0] if len(resolved) == len(folders) else None), [""] * len(folders)
    common = Path(os.path.commonpath(resolved))
    return common, ["" if folder == common else f"{folder.relative_to(common).as_posix()}/" for folder in resolved]


def _class_masks(dataset: Dataset, targets: Sequence[int]) -> tuple[Bools, Bools]:
    """Masks of the images with a source class and of those with a target class: (images,), (images,)."""
    target_set = set(targets)
    has_source = np.array([any(label not in target_set for label in tags) for tags in dataset.tags], dtype=np.bool_)
    has_target = np.array([any(label in target_set for label in tags) for tags in dataset.tags], dtype=np.bool_)
    return has_source, has_target


def _source_labels(dataset: Dataset, targets: Sequence[int]) -> list[int]:
    return [label for label in range(len(dataset.classes)) if label not in set(targets)]


def _box_counts(dataset: Dataset, truth: GroundTruth) -> Floats:
    """Number of boxes of every class in every image, without ignored ones: (images, classes)."""
    counts = np.zeros((len(dataset), len(dataset.classes)))
    np.add.at(counts, (truth.image[~truth.ignored], truth.label[~truth.ignored]), 1)
    return counts


def _balanced_half(shows: Bools, generator: np.random.Generator, tries: int = 200) -> Bools:
    """Mask of a random half of the images with about half of the images of every class: (n, classes) -> (n,).

    The most balanced of `tries` random halves.
    """
    n, totals = len(shows), shows.sum(axis=0)
    best, best_imbalance = np.arange(n) < n // 2, np.inf
    for _ in range(tries):
        half = generator.permutation(n) < n // 2
        imbalance = (np.abs(2 * shows[half].sum(axis=0) - totals) / np.maximum(totals, 1)).max(initial=0)
        if imbalance < best_imbalance:
            best, best_imbalance = half, imbalance
    return best
