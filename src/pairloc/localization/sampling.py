"""What a training step sees: pairs of bags, and a few proposals of each (paper: 3 foreground and 7 background)."""

from dataclasses import dataclass

import torch
from torch import Tensor

_TRIES = 16  # draws of a bag that lacks a class


@dataclass(frozen=True)
class Shown:
    """Bags and a class that each shows, n entries in all; those of a class stand side by side."""

    bag: Tensor  # (n,)
    label: Tensor  # (n,) ascending
    first: Tensor  # (C,) where a class begins
    count: Tensor  # (C,) and how many entries it has

    @classmethod
    def of(cls, bag: Tensor, label: Tensor, classes: int) -> "Shown":
        """Entries (n,) whose classes ascend."""
        count = torch.bincount(label, minlength=classes)
        return cls(bag, label, count.cumsum(0) - count, count)

    def __len__(self) -> int:
        return len(self.bag)


@dataclass(frozen=True)
class BagPairs:
    """n pairs of bags: an entry, and either another entry of its class or one of the others, which lack that class."""

    first: Tensor  # (n,) entry
    second: Tensor  # (n,) entry of the same class, -1 where the partner is another
    other: Tensor  # (n,) index into the others, -1 where the partner is an entry

    def __len__(self) -> int:
        return len(self.first)


class PairDrawer:
    """Draws pairs of bags, the one way both trainings do it.

    The first bag shows a class. With probability `same` the second is another bag that shows it, else one of `others`
    (m,), bags of which `has` (N, C) says that they lack it. A bag is never paired with itself; an entry for which there
    is no partner of either kind is left out.
    """

    def __init__(self, shown: Shown, others: Tensor, has: Tensor, same: float, seed: int) -> None:
        self.shown, self.others, self.has, self.same = shown, others, has, same
        self.generator = torch.Generator(has.device).manual_seed(seed)

    def draw(self, count: int) -> BagPairs:
        """At most so many pairs."""
        shown, device = self.shown, self.has.device
        first = torch.randint(len(shown), (count,), generator=self.generator, device=device)
        label = shown.label[first]
        many = shown.count[label]
        step = (torch.rand(count, generator=self.generator, device=device) * (many - 1)).long()  # never itself
        second = shown.first[label] + (first - shown.first[label] + 1 + step) % many.clamp(min=1)
        other, lacks = self._others(label)
        with_other = torch.rand(count, generator=self.generator, device=device) >= self.same
        with_other = (with_other & lacks) | (many < 2)
        possible = lacks | (many > 1)
        pairs = BagPairs(first, torch.where(with_other, -1, second), torch.where(with_other, other, -1))
        return BagPairs(pairs.first[possible], pairs.second[possible], pairs.other[possible])

    def _others(self, label: Tensor) -> tuple[Tensor, Tensor]:
        """For every class (n,) an index into the others that lacks it, and whether one was found."""
        if not len(self.others):
            return torch.zeros_like(label), torch.zeros_like(label, dtype=torch.bool)
        size = (len(label), _TRIES)
        tries = torch.randint(len(self.others), size, generator=self.generator, device=label.device)
        lacks = ~self.has[self.others[tries], label[:, None]]
        return tries.gather(1, lacks.int().argmax(dim=1, keepdim=True))[:, 0], lacks.any(dim=1)


@dataclass(frozen=True)
class Sample:
    """m proposals of each of n bags."""

    proposals: Tensor  # (n, m)
    foreground: Tensor  # (n, m) whether drawn as foreground
    drawn: Tensor  # (n, m) False where the bag had too few


def draw(foreground: Tensor, background: Tensor, counts: tuple[int, int], generator: torch.Generator) -> Sample:
    """Draw proposals evenly at random, from masks (n, B); foreground that is missing is made up for by background."""
    fg, bg = counts
    keys = torch.rand(foreground.shape, generator=generator, device=generator.device).to(foreground.device)
    first, first_drawn = _lowest(keys, foreground, fg)
    second, second_drawn = _lowest(keys, background, fg + bg)
    spare = fg - first_drawn.sum(dim=1, keepdim=True)
    place = torch.arange(second.shape[1], device=second.device)
    second_drawn = second_drawn & (place < bg + spare)
    is_first = torch.cat([torch.ones_like(first_drawn), torch.zeros_like(second_drawn)], dim=1)
    return Sample(torch.cat([first, second], dim=1), is_first, torch.cat([first_drawn, second_drawn], dim=1))


def _lowest(keys: Tensor, allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    lowest, place = keys.masked_fill(~allowed, 2.0).topk(min(count, keys.shape[1]), dim=1, largest=False)
    return place, lowest < 2.0
