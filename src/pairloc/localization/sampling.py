"""Sampling for a training step: pairs of bags, and proposals of each (paper: 3 foreground and 7 background)."""

from dataclasses import dataclass

import torch
from torch import Tensor

_TRIES = 16  # attempts to draw a bag that lacks a class


@dataclass(frozen=True)
class PositiveBags:
    """The n (bag, class) entries to train on, sorted by class: the bag shows the class."""

    bag: Tensor  # (n,)
    label: Tensor  # (n,) ascending
    first: Tensor  # (C,) index of the first entry of each class
    count: Tensor  # (C,) number of entries of each class

    @classmethod
    def of(cls, bag: Tensor, label: Tensor, classes: int) -> "PositiveBags":
        """Build the index from bags (n,) and their classes (n,), in ascending order of class."""
        count = torch.bincount(label, minlength=classes)
        return cls(bag, label, count.cumsum(0) - count, count)

    def __len__(self) -> int:
        return len(self.bag)


@dataclass(frozen=True)
class BagPairs:
    """n pairs of bags: an entry, and either another entry of its class or a bag that lacks the class."""

    first: Tensor  # (n,) index of an entry
    second: Tensor  # (n,) index of an entry of the same class, or -1
    other: Tensor  # (n,) index into the other bags where `second` is -1, else -1

    def __len__(self) -> int:
        return len(self.first)


class PairDrawer:
    """Draws pairs of bags for training on the source and on the target.

    The first bag shows a class. With probability `same`, the second is another bag that shows it; otherwise it is one
    of `others` (m,) that lacks the class according to `has_class` (N, C). A bag is never paired with itself; entries
    without a possible partner are skipped.
    """

    def __init__(self, positives: PositiveBags, others: Tensor, has_class: Tensor, same: float, seed: int) -> None:
        self.positives, self.others, self.has_class, self.same = positives, others, has_class, same
        self.generator = torch.Generator(has_class.device).manual_seed(seed)

    def draw(self, count: int) -> BagPairs:
        """Draw at most `count` pairs."""
        positives, device = self.positives, self.has_class.device
        first = torch.randint(len(positives), (count,), generator=self.generator, device=device)
        label = positives.label[first]
        size = positives.count[label]
        step = (torch.rand(count, generator=self.generator, device=device) * (size - 1)).long()  # not the entry itself
        second = positives.first[label] + (first - positives.first[label] + 1 + step) % size.clamp(min=1)
        other, lacks = self._others(label)
        use_other = torch.rand(count, generator=self.generator, device=device) >= self.same
        use_other = (use_other & lacks) | (size < 2)
        possible = lacks | (size > 1)
        pairs = BagPairs(first, torch.where(use_other, -1, second), torch.where(use_other, other, -1))
        return BagPairs(pairs.first[possible], pairs.second[possible], pairs.other[possible])

    def _others(self, label: Tensor) -> tuple[Tensor, Tensor]:
        """Draw for every class (n,) an index into `others` of a bag that lacks it, and whether one was found (n,)."""
        if not len(self.others):
            return torch.zeros_like(label), torch.zeros_like(label, dtype=torch.bool)
        size = (len(label), _TRIES)
        tries = torch.randint(len(self.others), size, generator=self.generator, device=label.device)
        lacks = ~self.has_class[self.others[tries], label[:, None]]
        return tries.gather(1, lacks.int().argmax(dim=1, keepdim=True))[:, 0], lacks.any(dim=1)


@dataclass(frozen=True)
class Sample:
    """A sample of m proposals from each of n bags."""

    proposals: Tensor  # (n, m)
    foreground: Tensor  # (n, m) True for proposals drawn as foreground
    drawn: Tensor  # (n, m) False where the bag has too few proposals


def draw(foreground: Tensor, background: Tensor, counts: tuple[int, int], generator: torch.Generator) -> Sample:
    """Draw proposals uniformly from masks (n, B); `counts` are the numbers of foreground and background proposals.

    A bag with too few foreground proposals repeats them, so that foreground always has the same weight; a bag without
    any gets background proposals in their places.
    """
    fg, bg = counts
    keys = torch.rand(foreground.shape, generator=generator, device=generator.device).to(foreground.device)
    first, first_drawn = _lowest(keys, foreground, fg)
    second, second_drawn = _lowest(keys, background, fg + bg)
    available = first_drawn.sum(dim=1, keepdim=True)  # (n, 1)
    first = first.gather(1, torch.arange(fg, device=first.device) % available.clamp(min=1))
    first_drawn = (available > 0).expand(-1, fg)
    spare = torch.where(available > 0, 0, fg)
    rank = torch.arange(second.shape[1], device=second.device)
    second_drawn = second_drawn & (rank < bg + spare)
    is_first = torch.cat([torch.ones_like(first_drawn), torch.zeros_like(second_drawn)], dim=1)
    return Sample(torch.cat([first, second], dim=1), is_first, torch.cat([first_drawn, second_drawn], dim=1))


def _lowest(keys: Tensor, allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    lowest, proposals = keys.masked_fill(~allowed, 2.0).topk(min(count, keys.shape[1]), dim=1, largest=False)
    return proposals, lowest < 2.0
