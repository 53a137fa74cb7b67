"""The target in training: tagged bags, without any ground-truth boxes."""

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
from pairloc.datasets.names import known_class
from pairloc.errors import InputError
from pairloc.localization.functions import TransferScores
from pairloc.localization.known import KnownClasses
from pairloc.settings import FeatureSettings

Selection = tuple[Tensor, ...]  # for every class (M,): index of the selected proposal of each positive bag


@dataclass(frozen=True)
class Target:
    """The N tagged bags, with the features of transfer and class scores; those of the latter are read when needed."""

    bags: Bags  # with the features of the transfer scores
    classes: tuple[str, ...]
    positives: tuple[Tensor, ...]  # for every class (M,): its tagged bags that have proposals, ascending
    tagged: Tensor  # (N, C)
    read_class_bags: Callable[[], Bags]
    known: Tensor | None = None  # (N, B, K) probabilities of the known classes, if the proposer names classes
    own: tuple[int | None, ...] = ()  # for every class the known class that it is by name; empty if none is

    @classmethod
    def of(
        cls,
        bags: Bags,
        read_class_bags: Callable[[], Bags],
        tags: Dataset,
        known: KnownClasses | None = None,
        *,
        tags_as_new: bool = False,
    ) -> "Target":
        """Combine N bags with the tags of a data set that has the same images in the same order.

        A tag with the name of a known class is that class, unless `tags_as_new` says that all are new (`names.py`).
        Raises an InputError if no image has a tag.
        """
        tagged = torch.zeros(bags.count, len(tags.classes), dtype=torch.bool)
        for row, labels in enumerate(tags.tags):
            tagged[row, list(labels)] = True
        if not tagged.any():
            raise InputError("no image of the target has a tag: add tags to the target, or check its format")
        filled = bags.valid.any(dim=1).cpu()
        positives = tuple(torch.nonzero(column & filled)[:, 0] for column in tagged.T)
        probabilities = None if known is None else known.probabilities(bags)
        own: tuple[int | None, ...] = ()
        if known is not None and probabilities is not None and not tags_as_new:
            own = tuple(known_class(name, known.names) for name in tags.classes)
        return cls(bags, tags.classes, positives, tagged, read_class_bags, probabilities, own)

    @classmethod
    def from_store(
        cls,
        store: BagStore,
        tags: Dataset,
        scores: TransferScores,
        features: FeatureSettings,
        *,
        known: KnownClasses | None = None,
        tags_as_new: bool = False,
        indices: Sequence[int] | None = None,
        device: str | torch.device = "cpu",
        memory: int = 8 << 30,
        seed: int = 0,
    ) -> "Target":
        """Read the bags of a store, or those at `indices`, with the features of transfer and class scores.

        If the proposer's `known` classes are given, their probabilities are computed from its features, and a tag with
        the name of one is that class, unless `tags_as_new`.
        """
        read = partial(Bags, store, indices=indices, device=device, memory=memory)
        transfer_bags = read(scores.settings.features, reduction=scores.reduction)
        return cls.of(transfer_bags, partial(read, features, seed=seed), tags, known, tags_as_new=tags_as_new)

    @cached_property
    def class_bags(self) -> Bags:
        """The same bags with the features of the class scores."""
        return self.read_class_bags()

    def __getstate__(self) -> dict[str, object]:
        """Pickle with the features of the class scores: another machine may not see the files they come from."""
        _ = self.class_bags
        return self.__dict__

    def boxes(self, label: int) -> Tensor:
        """Return all proposals of the positive bags of a class: (M, B, 4)."""
        return self.bags.boxes[self.positives[label].to(self.bags.device)]

    def selected_boxes(self, selection: Selection, label: int) -> Tensor:
        """Return the selected boxes of a class: (M, 4)."""
        chosen = selection[label].to(self.bags.device)
        return self.bags.boxes[self.positives[label].to(self.bags.device), chosen]

    def selectable(self, bags: Tensor, max_area: float) -> Tensor:
        """Return which proposals of bags (n,) may be selected: (n, B).

        These are the proposals that cover at most the fraction `max_area` of the image, or all if a bag has none.
        """
        rows = bags.to(self.bags.device)
        valid = self.bags.valid[rows]
        small = valid & (self.bags.area[rows] <= max_area)
        return torch.where(small.any(dim=1, keepdim=True), small, valid)


class LargestFirst:
    """A task whose items are classes: a cluster starts with those of most bags."""

    target: Target

    def cost(self, label: int) -> float:
        """The number of bags of a class."""
        return len(self.target.positives[label])


def fold_of_bags(target: Target, k: int, seed: int) -> Tensor:
    """Assign every bag to one of k folds: (N,) in 0 ... k - 1."""
    positives = [bags.numpy() for bags in target.positives]
    return torch.from_numpy(folds(target.bags.count, positives, k, np.random.default_rng(seed)))
