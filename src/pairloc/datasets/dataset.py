"""Tagged images: the only view of a data set that code for the target may use."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pairloc.boxes import Size
from pairloc.errors import InputError


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a data set: id, file and size."""

    id: int | str
    file: str  # relative to the image folder, with forward slashes
    size: Size | None  # (width, height) of the upright image; None if unknown


@dataclass(frozen=True)
class Dataset:
    """Images, classes, and the tags of every image. True boxes are kept apart, in `datasets.groundtruth`.

    Parameters
    ----------
    images : id, file and size of every image
    classes : names of the classes
    tags : for every image the indices of its classes, ascending
    class_ids : ids of the classes in the annotations they come from; empty if they have none
    folder : folder of the images

    Raises
    ------
    ValueError : images and tags differ in length, or a tag has no class

    Examples
    --------
    >>> dataset = Dataset((Image(1, "a.jpg", None), Image(2, "b.jpg", None)), ("cat", "dog"), ((0,), (0, 1)))
    >>> dataset.names(1)
    ('cat', 'dog')
    """

    images: tuple[Image, ...]
    classes: tuple[str, ...]
    tags: tuple[tuple[int, ...], ...]  # for every image: sorted indices into `classes`
    class_ids: tuple[int, ...] = ()  # category ids of the annotations; default 1, 2, ...
    folder: Path | None = None  # image folder; None if unknown

    def __post_init__(self) -> None:
        if not self.class_ids:
            object.__setattr__(self, "class_ids", tuple(range(1, len(self.classes) + 1)))
        if not (len(self.tags) == len(self.images) and len(self.class_ids) == len(self.classes)):
            raise ValueError("a data set needs one entry of tags per image and one class id per class")

    def __len__(self) -> int:
        return len(self.images)

    def names(self, index: int) -> tuple[str, ...]:
        """Return the names of the tags of the image at `index`."""
        return tuple(self.classes[label] for label in self.tags[index])

    @cached_property
    def positives(self) -> tuple[tuple[int, ...], ...]:
        """For every class, the indices of the images tagged with it."""
        images: list[list[int]] = [[] for _ in self.classes]
        for index, tags in enumerate(self.tags):
            for label in tags:
                images[label].append(index)
        return tuple(tuple(indices) for indices in images)

    def path(self, index: int) -> Path:
        """Return the path of the image at `index`; raises an InputError if the image folder is unknown."""
        if self.folder is None:
            raise InputError(f"{self.images[index].file}: the image folder is unknown; pass it with --images")
        return self.folder / self.images[index].file

    def subset(self, indices: Sequence[int]) -> "Dataset":
        """Return a data set with the same classes and only the images at `indices`, in this order."""
        return Dataset(
            tuple(self.images[index] for index in indices),
            self.classes,
            tuple(self.tags[index] for index in indices),
            self.class_ids,
            self.folder,
        )

    def indices_of(self, other: "Dataset") -> list[int | None]:
        """Return the index in this data set of every image of `other`; None for an image that is not in this one.

        Images are matched by file, or by id if the two data sets have no file in common.
        """
        by_file = {image.file: index for index, image in enumerate(self.images)}
        found = [by_file.get(image.file) for image in other.images]
        if any(index is not None for index in found):
            return found
        by_id = {image.id: index for index, image in enumerate(self.images)}
        return [by_id.get(image.id) for image in other.images]
