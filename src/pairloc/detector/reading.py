"""Images become tensors: any mode, upright, RGB."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pairloc import platform
from pairloc.errors import InputError
from pairloc.images import ImageError, open_image, read_header

_LOOKED_AT = 16  # images, to know how large they are


def load_image(path: Path) -> Tensor:
    """An image as it is shown: (3, height, width) bytes."""
    return torch.from_numpy(np.array(open_image(path))).permute(2, 0, 1).contiguous()


class Packed:
    """Images of any sizes as one tensor: a process hands tensors over one by one, and so does a GPU's bus."""

    def __init__(self, images: Sequence[Tensor]) -> None:
        self.shapes = [tuple(image.shape) for image in images]
        self.pixels = torch.cat([image.flatten() for image in images]) if images else torch.zeros(0)

    def to(self, device: str | torch.device) -> list[Tensor]:
        """The images (3, H, W) in 0 ... 1 on a device."""
        pixels = self.pixels.to(device, non_blocking=True).float() / 255
        sizes = [math.prod(shape) for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(torch.split(pixels, sizes), self.shapes, strict=True)]


class Images(Dataset[Tensor | str]):
    """The images of some paths; one that cannot be read is the sentence that says why."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return load_image(self.paths[index])
        except ImageError as error:
            return f"{self.paths[index]}: {error}"


class Read:
    """Some images, in order: those that could be read, and of every one what was wrong with it."""

    def __init__(self, entries: Sequence[Tensor | str]) -> None:
        self.images = Packed([entry for entry in entries if isinstance(entry, Tensor)])
        self.complaints = [entry if isinstance(entry, str) else None for entry in entries]

    def every(self) -> Packed:
        """All of the images; where one could not be read, that is an error."""
        for complaint in self.complaints:
            if complaint is not None:
                raise InputError(complaint)
        return self.images


def batches(paths: Sequence[Path], groups: Sequence[list[int]], workers: int) -> Iterator[Read]:
    """The images of each group of indices into `paths`, in order, read ahead by at most so many processes."""
    several = readers(paths, max(map(len, groups), default=0), workers)
    return iter(DataLoader(Images(paths), batch_sampler=groups, num_workers=several, collate_fn=Read))


def readers(paths: Sequence[Path], together: int, workers: int) -> int:
    """At most so many processes that what they read ahead, two groups of images each, has room in shared memory."""
    if not workers or not paths:
        return 0
    largest = 0
    for path in paths[:: math.ceil(len(paths) / _LOOKED_AT)]:
        try:
            largest = max(largest, 3 * math.prod(read_header(path).size))
        except ImageError:
            continue  # whoever reads it says so
    return min(workers, platform.room_for_tensors() // max(1, 2 * together * largest))
