"""The target as learning sees it: bags, tags, and a selection. There are no boxes of ground truth here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.store import BagStore
from pairloc.bags.tensors import Bags
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.folds import folds
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.localization.functions import TransferScores
from pairloc.settings import LearningSettings

Selection = tuple[Tensor, ...]  # a class: the chosen proposal (M,) of each of its positive bags


@dataclass(frozen=True)
class Target:
    """The tagged bags, with the features of both sides."""

    transfer: Bags  # as the transfer scores see them
    own: Bags  # as the class scores see them
    classes: tuple[str, ...]
    positives: tuple[Tensor, ...]  # a class: its tagged bags (M,) that have proposals, ascending
    tagged: Tensor  # (N, C)

    @classmethod
    def of(cls, transfer: Bags, own: Bags, dataset: Dataset | None = None) -> "Target":
        """The target of a store, with its tags or with those of another data set of the same images."""
        dataset = dataset or transfer.store.dataset.subset(transfer.indices)
        tagged = torch.zeros(transfer.count, len(dataset.classes), dtype=torch.bool)
        for row, tags in enumerate(dataset.tags):
            tagged[row, list(tags)] = True
        if not tagged.any():
            raise InputError("no picture of the target has a tag")
        filled = transfer.valid.any(dim=1).cpu()
        positives = tuple(torch.nonzero(column & filled)[:, 0] for column in tagged.T)
        return cls(transfer, own, dataset.classes, positives, tagged)

    @classmethod
    def from_store(
        cls,
        store: BagStore,
        scores: TransferScores,
        settings: LearningSettings,
        *,
        device: str | torch.device = "cpu",
        memory: int = 8 << 30,
        indices: Sequence[int] | None = None,
        dataset: Dataset | None = None,
    ) -> "Target":
        """The bags of a store, or some of them, as the transfer scores and the settings want them."""
        seen = Bags(
            store, scores.settings.features, reduction=scores.reduction, geometry=scores.settings.geometry,
            device=device, memory=memory, indices=indices,
        )  # fmt: skip
        own = Bags(
            store, settings.features, dimensions=settings.dimensions, geometry=settings.geometry, device=device,
            memory=memory, indices=indices, seed=settings.seed,
        )  # fmt: skip
        return cls.of(seen, own, dataset)

    def some(self, most: int) -> "Target":
        """The same with at most so many positive bags a class."""
        return replace(self, positives=tuple(bags[:most] for bags in self.positives))

    def expect(self, label: int, *, own: bool) -> None:
        """Begin to read the features of a class that will be asked for soon, of the class side too if `own`."""
        for side in (self.transfer, self.own) if own else (self.transfer,):
            side.expect(self.positives[label])

    def boxes(self, selection: Selection, label: int) -> Tensor:
        """The selected boxes of a class: (M, 4)."""
        chosen = selection[label].to(self.transfer.device)
        return self.transfer.boxes[self.positives[label].to(self.transfer.device), chosen]


def fold_of_bags(target: Target, k: int, seed: int) -> Tensor:
    """A fold 0 ... k - 1 for every bag: (N,)."""
    positives = [bags.numpy() for bags in target.positives]
    return torch.from_numpy(folds(target.transfer.count, positives, k, np.random.default_rng(seed)))


def selected_boxes(target: Target, selection: Selection) -> ScoredBoxes:
    """A selection as boxes."""
    return scored_boxes(target, tuple(target.boxes(selection, label) for label in range(len(target.classes))))


def scored_boxes(target: Target, found: tuple[Tensor, ...], sure: tuple[Tensor, ...] | None = None) -> ScoredBoxes:
    """The boxes (M, 4) of every class, with the confidence in each where it is known."""
    image = np.concatenate([bags.numpy() for bags in target.positives])
    label = np.concatenate([np.full(len(bags), c) for c, bags in enumerate(target.positives)])
    boxes = np.concatenate([entry.cpu().numpy() for entry in found])
    score = np.ones(len(image)) if sure is None else np.concatenate([entry.numpy() for entry in sure]).round(4)
    return ScoredBoxes(image, label, boxes.astype(np.float64).reshape(-1, 4), score)
