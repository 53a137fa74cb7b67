"""Training images with their boxes, augmented and read ahead in batches."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.reading import Packed, load_image, worker_count
from pairloc.errors import InputError
from pairloc.images import ImageError
from pairloc.settings import ProposerSettings

TrainingImage = tuple[Tensor, dict[str, Tensor]]  # image (3, H, W) in uint8; boxes (n, 4) and labels (n,)


class Samples(torch.utils.data.Dataset[TrainingImage | str]):
    """Training images with their boxes; seed, epoch and image decide which half of them is mirrored.

    Indices run through all epochs (epoch * images + position), so that one set of processes reads all of them.
    """

    def __init__(self, dataset: Dataset, truth: GroundTruth, chosen: list[int], settings: ProposerSettings) -> None:
        self.dataset, self.settings, self.chosen = dataset, settings, chosen
        order = np.argsort(truth.image, kind="stable")
        counts = np.bincount(truth.image, minlength=len(dataset))
        self.rows = np.split(order, np.cumsum(counts)[:-1]) if len(dataset) else []
        self.truth = truth

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def steps(self) -> int:
        """Batches per epoch."""
        return math.ceil(len(self) / self.settings.batch)

    def batches(self, first: int) -> Iterator["TrainingBatch"]:
        """Iterate over the batches of all epochs from `first` on; every epoch has its own random order."""
        indices: list[list[int]] = []
        for epoch in range(first, self.settings.epochs):
            order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(self)) + epoch * len(self)
            for start in range(0, len(self), self.settings.batch):
                indices.append(order[start : start + self.settings.batch].tolist())
        paths = [self.dataset.path(image) for image in self.chosen]
        workers = worker_count(paths, self.settings.batch, self.settings.workers)
        return iter(
            DataLoader(
                self,
                batch_sampler=indices,
                num_workers=workers,
                collate_fn=TrainingBatch,
                pin_memory=torch.cuda.is_available(),
            )
        )

    def __getitem__(self, index: int) -> TrainingImage | str:
        try:
            return self.sample(index)
        except InputError as error:
            return str(error)

    def sample(self, index: int) -> TrainingImage:
        """Load an image with its boxes and labels; `index` includes the epoch, which seeds mirroring and crop."""
        epoch, position = divmod(index, len(self))
        number = self.chosen[position]
        try:
            image = load_image(self.dataset.path(number))
        except ImageError as error:
            raise InputError(f"{self.dataset.path(number)}: {error}") from error
        rows = [row for row in self.rows[number].tolist() if not self.truth.ignored[row]]
        boxes = torch.from_numpy(self.truth.boxes[rows]).float().reshape(-1, 4)
        labels = torch.from_numpy(self.truth.label[rows]) + 1
        if self.settings.class_agnostic:
            labels = torch.ones_like(labels)
        random = np.random.default_rng([self.settings.seed, epoch, number])
        if random.random() < 0.5:
            image = image.flip(2)
            boxes = (
                boxes[:, [2, 1, 0, 3]] * torch.tensor([-1.0, 1, -1, 1]) + torch.tensor([1.0, 0, 1, 0]) * image.shape[2]
            )
        if self.settings.crop < 1:
            image, boxes, visible = _cropped(image, boxes, self.settings.crop, random)
            labels = labels[visible]
        return image, {"boxes": boxes, "labels": labels}


def _cropped(
    image: Tensor, boxes: Tensor, min_fraction: float, random: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Crop an image to a random window with sides of at least `min_fraction` of the image's sides.

    Returns the window, the boxes that are more than half inside it, clipped to it, and their mask.
    """
    height, width = image.shape[1:]
    h, w = (max(1, math.ceil(side * random.uniform(min_fraction, 1))) for side in (height, width))
    y, x = (int(random.integers(0, margin + 1)) for margin in (height - h, width - w))
    corner = torch.tensor([x, y, x, y])
    clipped = (boxes - corner).clamp(min=0).minimum(torch.tensor([w, h, w, h]))
    area, visible_area = ((b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (boxes, clipped))
    visible = visible_area > 0.5 * area
    return image[:, y : y + h, x : x + w], clipped[visible], visible


class TrainingBatch:
    """Training samples as three flat tensors, since their images differ in size."""

    def __init__(self, entries: Sequence[TrainingImage | str]) -> None:
        self.error = next((entry for entry in entries if isinstance(entry, str)), None)
        samples = [entry for entry in entries if not isinstance(entry, str)]
        self.images = Packed([image for image, _ in samples])
        self.counts = [len(target["labels"]) for _, target in samples]
        empty = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
        self.boxes = torch.cat([empty[0], *(target["boxes"] for _, target in samples)])
        self.labels = torch.cat([empty[1], *(target["labels"] for _, target in samples)])

    def pin_memory(self) -> "TrainingBatch":
        """Pin the pixels, so that a GPU can copy them while it computes."""
        self.images.pixels = self.images.pixels.pin_memory()
        return self

    def to(self, device: str) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        """Copy the images, in 0 ... 1, and their targets to a device; raise an InputError if one was unreadable."""
        if self.error:
            raise InputError(self.error)  # raised here because torch adds a traceback to errors of worker processes
        boxes, labels = (torch.split(values.to(device), self.counts) for values in (self.boxes, self.labels))
        return self.images.to(device), [{"boxes": b, "labels": c} for b, c in zip(boxes, labels, strict=True)]
