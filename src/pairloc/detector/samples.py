"""Training images of the proposer, with their boxes, in batches read ahead."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.reading import Packed, load_image, readers
from pairloc.errors import InputError
from pairloc.images import ImageError
from pairloc.settings import ProposerSettings

TrainingImage = tuple[Tensor, dict[str, Tensor]]  # an image (3, H, W) in bytes, and its boxes (n, 4) and labels (n,)


class Samples(torch.utils.data.Dataset[TrainingImage | str]):
    """Training images with their boxes; half of them are mirrored, by seed, epoch and index.

    Samples are counted through all epochs, so that one set of processes reads all of them.
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
        """Batches an epoch."""
        return math.ceil(len(self) / self.settings.batch)

    def batches(self, first: int) -> Iterator["TrainingBatch"]:
        """The batches of all epochs from `first` on, each epoch in an order of its own."""
        indices: list[list[int]] = []
        for epoch in range(first, self.settings.epochs):
            order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(self)) + epoch * len(self)
            for start in range(0, len(self), self.settings.batch):
                indices.append(order[start : start + self.settings.batch].tolist())
        paths = [self.dataset.path(image) for image in self.chosen]
        workers = readers(paths, self.settings.batch, self.settings.workers)
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
        """An image and its boxes and labels; the epoch, and with it the crop, is in the index."""
        epoch, place = divmod(index, len(self))
        number = self.chosen[place]
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
            image, boxes, seen = _cropped(image, boxes, self.settings.crop, random)
            labels = labels[seen]
        return image, {"boxes": boxes, "labels": labels}


def _cropped(image: Tensor, boxes: Tensor, least: float, random: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A random window of an image, at least so much of its sides; the boxes half seen in it, and which they are."""
    height, width = image.shape[1:]
    h, w = (max(1, math.ceil(side * random.uniform(least, 1))) for side in (height, width))
    y, x = (int(random.integers(0, room + 1)) for room in (height - h, width - w))
    corner = torch.tensor([x, y, x, y])
    clipped = (boxes - corner).clamp(min=0).minimum(torch.tensor([w, h, w, h]))
    area, seen_area = ((b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]) for b in (boxes, clipped))
    seen = seen_area > 0.5 * area
    return image[:, y : y + h, x : x + w], clipped[seen], seen


class TrainingBatch:
    """Samples as three tensors, whatever their images' sizes."""

    def __init__(self, entries: Sequence[TrainingImage | str]) -> None:
        self.complaint = next((entry for entry in entries if isinstance(entry, str)), None)
        samples = [entry for entry in entries if not isinstance(entry, str)]
        self.images = Packed([image for image, _ in samples])
        self.counts = [len(target["labels"]) for _, target in samples]
        none = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
        self.boxes = torch.cat([none[0], *(target["boxes"] for _, target in samples)])
        self.labels = torch.cat([none[1], *(target["labels"] for _, target in samples)])

    def pin_memory(self) -> "TrainingBatch":
        """Let a GPU fetch the pixels while it computes."""
        self.images.pixels = self.images.pixels.pin_memory()
        return self

    def to(self, device: str) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        """The images in 0 ... 1 and their boxes on a device, as the network takes them."""
        if self.complaint:
            raise InputError(self.complaint)  # not in the process that read it: torch adds its traceback there
        boxes, labels = (torch.split(values.to(device), self.counts) for values in (self.boxes, self.labels))
        return self.images.to(device), [{"boxes": b, "labels": c} for b, c in zip(boxes, labels, strict=True)]
