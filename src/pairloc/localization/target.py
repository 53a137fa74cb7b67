"""The target as learning sees it: bags, tags, and a selection. There are no boxes of ground truth here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.store import BagStore
from pairloc.bags.tensors import Bags
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.folds import folds
from pairloc.errors import InputError
from pairloc.localization.functions import TransferScores
from pairloc.settings import FeatureSettings

Selection = tuple[Tensor, ...]  # for every class the chosen proposal (M,) of each of its positive bags


@dataclass(frozen=True)
class Target:
    """The tagged bags, with the features of both sides; those of the class scores are read when first asked for."""

    bags: Bags  # as the transfer scores see them
    classes: tuple[str, ...]
    positives: tuple[Tensor, ...]  # for every class its tagged bags (M,) that have proposals, ascending
    tagged: Tensor  # (N, C)
    read_class_bags: Callable[[], Bags]

    @classmethod
    def of(cls, bags: Bags, read_class_bags: Callable[[], Bags], tags: Dataset) -> "Target":
        """The target of bags (N,) with the tags of a data set of the same images in the same order."""
        tagged = torch.zeros(bags.count, len(tags.classes), dtype=torch.bool)
        for row, labels in enumerate(tags.tags):
            tagged[row, list(labels)] = True
        if not tagged.any():
            raise InputError("no image of the target has a tag")
        filled = bags.valid.any(dim=1).cpu()
        positives = tuple(torch.nonzero(column & filled)[:, 0] for column in tagged.T)
        return cls(bags, tags.classes, positives, tagged, read_class_bags)

    @classmethod
    def from_store(
        cls,
        store: BagStore,
        tags: Dataset,
        scores: TransferScores,
        features: FeatureSettings,
        *,
        indices: Sequence[int] | None = None,
        device: str | torch.device = "cpu",
        memory: int = 8 << 30,
        seed: int = 0,
    ) -> "Target":
        """The bags of a store, or those at `indices`, as transfer scores and class scores want them."""
        read = partial(Bags, store, indices=indices, device=device, memory=memory)
        seen = read(scores.settings.features, reduction=scores.reduction)
        return cls.of(seen, partial(read, features, seed=seed), tags)

    @cached_property
    def class_bags(self) -> Bags:
        """The same bags as the class scores see them."""
        return self.read_class_bags()

    def boxes(self, label: int) -> Tensor:
        """All proposals of a class's positive bags: (M, B, 4)."""
        return self.bags.boxes[self.positives[label].to(self.bags.device)]

    def selected_boxes(self, selection: Selection, label: int) -> Tensor:
        """The selected boxes of a class: (M, 4)."""
        chosen = selection[label].to(self.bags.device)
        return self.bags.boxes[self.positives[label].to(self.bags.device), chosen]

    def selectable(self, bags: Tensor, max_area: float) -> Tensor:
        """Whether proposals of some bags (n,) cover at most so much of their image: (n, B); all where none does."""
        rows = bags.to(self.bags.device)
        valid = self.bags.valid[rows]
        small = valid & (self.bags.area[rows] <= max_area)
        return torch.where(small.any(dim=1, keepdim=True), small, valid)


def fold_of_bags(target: Target, k: int, seed: int) -> Tensor:
    """A fold 0 ... k - 1 for every bag: (N,)."""
    positives = [bags.numpy() for bags in target.positives]
    return torch.from_numpy(folds(target.bags.count, positives, k, np.random.default_rng(seed)))
