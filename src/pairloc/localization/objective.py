"""The unified objective (paper, eq. loss and reloc_nonvecto_form): the loss of the mixed scores and the selection.

    L(psi, z) = L(psi, 0) + E(z | psi)

E is the energy that re-localization minimises, exact. L(psi, 0), the loss if no proposal showed anything, does not
depend on the selection; it runs over all pairs of proposals, so it is measured on a sample of them that stays the same
for a whole run. A re-localization that lowers E lowers L by as much.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pairloc.inference.pair_scores import pair_weight
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.losses import cross_entropy
from pairloc.localization.target import Target
from pairloc.settings import EnergySettings

_PAIRS = 4096  # of proposals a class
_BAGS = 256  # a class and kind


@dataclass(frozen=True)
class _Sample:
    bags: Tensor  # (n,) the unary loss is measured on
    weight: float  # bags each stands for
    left: tuple[Tensor, Tensor]  # (m,) bags, (m,) proposals
    right: tuple[Tensor, Tensor]


class Objective:
    """L(psi, 0) of every class, on a sample drawn once."""

    def __init__(self, target: Target, energy: EnergySettings, seed: int) -> None:
        self.target, self.energy = target, energy
        generator = torch.Generator().manual_seed(seed)
        self.samples = [self._draw(own, generator) for own in target.positives]

    def _draw(self, positives: Tensor, generator: torch.Generator) -> _Sample:
        valid = self.target.bags.valid.cpu()
        filled = torch.nonzero(valid.any(dim=1))[:, 0]
        chosen = filled[torch.randperm(len(filled), generator=generator)[:_BAGS]]
        ends = []
        m = len(positives)
        first = torch.randint(max(m, 1), (_PAIRS,), generator=generator)
        second = (first + 1 + (torch.rand(_PAIRS, generator=generator) * (m - 1)).long()) % max(m, 1)
        for end in (first, second) if m > 1 else ():
            bags = positives[end]
            keys = torch.rand(_PAIRS, valid.shape[1], generator=generator).masked_fill(~valid[bags], -1)
            ends.append((bags, keys.argmax(dim=1)))
        none = (torch.zeros(0, dtype=torch.int64),) * 2
        left, right = ends or (none, none)
        return _Sample(chosen, len(filled) / max(len(chosen), 1), left, right)

    @torch.no_grad()
    def without_selection(self, label: int, transfer: TransferScores, own: ClassScores | None) -> float:
        """L(psi, 0) of a class."""
        energy, target, sample = self.energy, self.target, self.samples[label]
        lambda1, lambda2 = (energy.lambda1, energy.lambda2) if own is not None else (1.0, 1.0)
        unary = lambda2 * transfer.unary.of_class(target.bags.features(sample.bags))
        if own is not None and lambda2 < 1:
            unary = unary + (1 - lambda2) * own.unary.of_class(target.class_bags.features(sample.bags), label)
        each = cross_entropy(unary, torch.zeros_like(unary)) * target.bags.valid[sample.bags.to(unary.device)]
        total = float(each.double().sum()) * sample.weight
        m = len(target.positives[label])
        if m < 2 or energy.alpha == 0:
            return total
        scores = self._pairs(sample, transfer, own, label, lambda1)
        sizes = target.bags.valid.sum(dim=1).double()[target.positives[label].to(target.bags.device)]
        pairs = float(sizes.sum() ** 2 - (sizes**2).sum())  # of proposals of two bags, ordered
        scale = pair_weight(energy.alpha, energy.alpha_scale, m)
        return total + scale * pairs * float(cross_entropy(scores, torch.zeros_like(scores)).double().mean())

    def _pairs(
        self, sample: _Sample, transfer: TransferScores, own: ClassScores | None, label: int, lambda1: float
    ) -> Tensor:
        """Mixed scores of the sampled pairs (m,)."""
        target = self.target
        (left, e), (right, f) = sample.left, sample.right
        both = [target.bags.chosen(bags, proposals[:, None]) for bags, proposals in ((left, e), (right, f))]
        mixed: Tensor = lambda1 * transfer.relation(*both)[:, 0, 0, 0]
        if own is not None and lambda1 < 1:
            both = [target.class_bags.chosen(bags, proposals[:, None]) for bags, proposals in ((left, e), (right, f))]
            labels = torch.full((len(left),), label, device=target.class_bags.device)
            mixed = mixed + (1 - lambda1) * own.relation.of_classes(both[0], both[1], labels)[:, 0, 0]
        return mixed
