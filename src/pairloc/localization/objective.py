"""The unified objective (paper, eq. loss and reloc_nonvecto_form): the loss of the mixed scores and the selection.

    L(psi, z) = L(psi, 0) + E(z | psi)

E is the energy that re-localization minimises; it is computed exactly. L(psi, 0) is the loss if every proposal were
background. It does not depend on the selection, and it sums over all pairs of proposals, so it is estimated on a sample
that is drawn once per run. A re-localization that lowers E lowers L by the same amount.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pairloc.inference.pair_scores import pair_weight
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.losses import cross_entropy
from pairloc.localization.target import Target
from pairloc.settings import EnergySettings

_PAIRS = 4096  # sampled pairs of proposals per class
_BAGS = 256  # sampled bags per class


@dataclass(frozen=True)
class _Sample:
    bags: Tensor  # (n,) bags to measure the unary loss on
    weight: float  # number of bags that each sampled bag represents
    left: tuple[Tensor, Tensor]  # (m,) bags, (m,) proposals
    right: tuple[Tensor, Tensor]


class Objective:
    """An estimate of L(psi, 0) of every class, on a sample drawn once."""

    def __init__(self, target: Target, energy: EnergySettings, seed: int) -> None:
        self.target, self.energy = target, energy
        generator = torch.Generator().manual_seed(seed)
        self.samples = [self._draw(bags, generator) for bags in target.positives]

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
        empty = (torch.zeros(0, dtype=torch.int64),) * 2
        left, right = ends or (empty, empty)
        return _Sample(chosen, len(filled) / max(len(chosen), 1), left, right)

    @torch.no_grad()
    def without_selection(self, label: int, transfer: TransferScores, class_scores: ClassScores | None) -> float:
        """Return L(psi, 0) of class `label`; `class_scores` is None during the warm-up."""
        energy, target, sample = self.energy, self.target, self.samples[label]
        lambda1, lambda2 = (energy.lambda1, energy.lambda2) if class_scores is not None else (1.0, 1.0)
        unary = lambda2 * transfer.unary.of_class(target.bags.features(sample.bags))
        if class_scores is not None and lambda2 < 1:
            unary = unary + (1 - lambda2) * class_scores.unary.of_class(target.class_bags.features(sample.bags), label)
        losses = cross_entropy(unary, torch.zeros_like(unary)) * target.bags.valid[sample.bags.to(unary.device)]
        total = float(losses.double().sum()) * sample.weight
        m = len(target.positives[label])
        if m < 2 or energy.alpha == 0:
            return total
        scores = self._pairs(sample, transfer, class_scores, label, lambda1)
        sizes = target.bags.valid.sum(dim=1).double()[target.positives[label].to(target.bags.device)]
        pairs = float(sizes.sum() ** 2 - (sizes**2).sum())  # number of ordered pairs of proposals from two bags
        scale = pair_weight(energy.alpha, energy.alpha_scale, m)
        return total + scale * pairs * float(cross_entropy(scores, torch.zeros_like(scores)).double().mean())

    def _pairs(
        self, sample: _Sample, transfer: TransferScores, class_scores: ClassScores | None, label: int, lambda1: float
    ) -> Tensor:
        """Return the mixed scores of the sampled pairs (m,)."""
        target = self.target
        (left, e), (right, f) = sample.left, sample.right
        both = [target.bags.chosen(bags, proposals[:, None]) for bags, proposals in ((left, e), (right, f))]
        mixed: Tensor = lambda1 * transfer.relation(*both)[:, 0, 0, 0]
        if class_scores is not None and lambda1 < 1:
            both = [target.class_bags.chosen(bags, proposals[:, None]) for bags, proposals in ((left, e), (right, f))]
            labels = torch.full((len(left),), label, device=target.class_bags.device)
            mixed = mixed + (1 - lambda1) * class_scores.relation.of_classes(both[0], both[1], labels)[:, 0, 0]
        return mixed
