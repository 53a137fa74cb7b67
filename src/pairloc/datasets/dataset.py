"""Tagged images: all that target-side code may know of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pairloc.boxes import Size
from pairloc.errors import InputError


@dataclass(frozen=True, slots=True)
class Image:
    """One image: its id, its file below the image folder, its size as shown."""

    id: int | str
    file: str  # relative to the image folder, with forward slashes
    size: Size | None  # (width, height) upright; None where neither the annotations nor an image told


@dataclass(frozen=True)
class Dataset:
    """Images, classes, and the tags of every image. Boxes are not here: see `data.groundtruth`."""

    images: tuple[Image, ...]
    classes: tuple[str, ...]
    tags: tuple[tuple[int, ...], ...]  # per image the indices into `classes`, ascending
    class_ids: tuple[int, ...] = ()  # the ids the annotations use; 1, 2, ... where they use none
    folder: Path | None = None  # where the images lie, where known

    def __post_init__(self) -> None:
        if not self.class_ids:
            object.__setattr__(self, "class_ids", tuple(range(1, len(self.classes) + 1)))
        if not (len(self.tags) == len(self.images) and len(self.class_ids) == len(self.classes)):
            raise ValueError("one entry of tags per image and one class id per class")

    def __len__(self) -> int:
        return len(self.images)

    def names(self, index: int) -> tuple[str, ...]:
        """The tags of an image by name."""
        return tuple(self.classes[label] for label in self.tags[index])

    @cached_property
    def positives(self) -> tuple[tuple[int, ...], ...]:
        """For every class the indices of the images tagged with it."""
        images: list[list[int]] = [[] for _ in self.classes]
        for index, tags in enumerate(self.tags):
            for label in tags:
                images[label].append(index)
        return tuple(tuple(indices) for indices in images)

    def path(self, index: int) -> Path:
        """The file of an image on disk."""
        if self.folder is None:
            raise InputError(f"{self.images[index].file}: the image folder is not known; name it with --images")
        return self.folder / self.images[index].file

    def subset(self, indices: Sequence[int]) -> "Dataset":
        """The same classes with these images only, in this order."""
        return Dataset(
            tuple(self.images[index] for index in indices),
            self.classes,
            tuple(self.tags[index] for index in indices),
            self.class_ids,
            self.folder,
        )

    def places(self, other: "Dataset") -> list[int | None]:
        """Where the images of another data set are in this one, by file; by id if no file is the same in both."""
        by_file = {image.file: index for index, image in enumerate(self.images)}
        found = [by_file.get(image.file) for image in other.images]
        if any(place is not None for place in found):
            return found
        by_id = {image.id: index for index, image in enumerate(self.images)}
        return [by_id.get(image.id) for image in other.images]
