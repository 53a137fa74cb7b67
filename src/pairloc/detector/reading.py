"""Reading images as RGB tensors, in any mode and orientation, with worker processes that read ahead."""

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

_SIZE_SAMPLE = 16  # images whose headers are read to estimate the largest size


def load_image(path: Path) -> Tensor:
    """Load an image as it is displayed: (3, height, width) in uint8. Raises an ImageError if it cannot be read."""
    return torch.from_numpy(np.array(open_image(path))).permute(2, 0, 1).contiguous()


class Packed:
    """Images of different sizes in one flat tensor, because one transfer between processes or to a GPU is faster."""

    def __init__(self, images: Sequence[Tensor]) -> None:
        self.shapes = [tuple(image.shape) for image in images]
        self.pixels = torch.cat([image.flatten() for image in images]) if images else torch.zeros(0)

    def to(self, device: str | torch.device) -> list[Tensor]:
        """Copy the images to a device: (3, H, W) each, in 0 ... 1."""
        pixels = self.pixels.to(device, non_blocking=True).float() / 255
        sizes = [math.prod(shape) for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(torch.split(pixels, sizes), self.shapes, strict=True)]


class Images(Dataset[Tensor | str]):
    """The images at some paths; an item is an error message if its image cannot be read."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor | str:
        try:
            return load_image(self.paths[index])
        except ImageError as error:
            return f"{self.paths[index]}: {error}"


class ImageBatch:
    """A batch of images: those that could be read, in order, and for every image its error message or None."""

    def __init__(self, entries: Sequence[Tensor | str]) -> None:
        self.images = Packed([entry for entry in entries if isinstance(entry, Tensor)])
        self.errors = [entry if isinstance(entry, str) else None for entry in entries]

    def __len__(self) -> int:
        return len(self.errors)

    def require_all(self) -> Packed:
        """Return the images; raise an InputError if one could not be read."""
        for error in self.errors:
            if error is not None:
                raise InputError(error)
        return self.images


def batches(paths: Sequence[Path], groups: Sequence[list[int]], workers: int) -> Iterator[ImageBatch]:
    """Read the images of each group of indices into `paths`, in order, with at most `workers` processes."""
    count = worker_count(paths, max(map(len, groups), default=0), workers)
    return iter(DataLoader(Images(paths), batch_sampler=groups, num_workers=count, collate_fn=ImageBatch))


def worker_count(paths: Sequence[Path], batch: int, workers: int) -> int:
    """Limit the number of reading processes so that their prefetched batches, two each, fit into shared memory."""
    if not workers or not paths:
        return 0
    largest = 0
    for path in paths[:: math.ceil(len(paths) / _SIZE_SAMPLE)]:
        try:
            largest = max(largest, 3 * math.prod(read_header(path).size))
        except ImageError:
            continue  # the error is reported when the image is read
    return min(workers, platform.room_for_tensors() // max(1, 2 * batch * largest))
