"""The unified objective (paper, eq. loss and reloc_nonvecto_form): the loss of the mixed scores and the selection.

    L(psi, z) = L(psi, 0) + E(z | psi)

E is the energy that re-localization minimises; it is computed exactly. L(psi, 0) is the loss if every proposal were
background: the unary loss of all proposals, and the pair loss of all ordered pairs of proposals from two bags, with or
without the tag. It does not depend on the selection. It sums over all pairs of bags, so it is estimated on a sample
that is drawn once per run: pairs of two positive bags, of a positive and a negative bag, and of two negative bags, each
weighted by the number of pairs it represents. A re-localization that lowers E lowers L by the same amount.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pairloc.inference.pair_scores import pair_weight
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.losses import cross_entropy
from pairloc.localization.target import Target
from pairloc.settings import EnergySettings

_PAIRS = 2048  # sampled pairs of proposals per class and kind of pair
_BAGS = 256  # sampled bags per class


@dataclass(frozen=True)
class PairSample:
    """Ordered pairs of proposals (m,) of one kind, and how many there are of it."""

    left: tuple[Tensor, Tensor]  # (m,) bags, (m,) proposals
    right: tuple[Tensor, Tensor]
    total: float  # number of ordered pairs of proposals that the sample represents


@dataclass(frozen=True)
class ClassSample:
    """The sample on which L(psi, 0) of one class is estimated."""

    bags: Tensor  # (n,) bags to measure the unary loss on
    weight: float  # number of bags that each sampled bag represents
    pairs: tuple[PairSample, ...]  # positive-positive, positive-negative and negative-negative


class Objective:
    """An estimate of L(psi, 0) of every class, on a sample drawn once."""

    def __init__(self, target: Target, energy: EnergySettings, seed: int) -> None:
        self.target, self.energy = target, energy
        generator = torch.Generator().manual_seed(seed)
        self.samples = [self._draw(label, generator) for label in range(len(target.classes))]

    def _draw(self, label: int, generator: torch.Generator) -> ClassSample:
        valid = self.target.bags.valid.cpu()
        filled = torch.nonzero(valid.any(dim=1))[:, 0]
        chosen = filled[torch.randperm(len(filled), generator=generator)[:_BAGS]]
        positives = self.target.positives[label]
        negatives = filled[~self.target.tagged[filled, label]]
        kinds = ((positives, positives), (positives, negatives), (negatives, negatives))
        pairs = tuple(self._draw_pairs(*kind, generator) for kind in kinds if self.energy.alpha)
        return ClassSample(chosen, len(filled) / max(len(chosen), 1), pairs)

    def _draw_pairs(self, first: Tensor, second: Tensor, generator: torch.Generator) -> PairSample:
        """Draw pairs of proposals uniformly: one from a bag in `first` (m,), one from another bag in `second` (k,)."""
        sizes = self.target.bags.valid.cpu().sum(dim=1).double()
        same = first is second
        total = float(sizes[first].sum() * sizes[second].sum() - (sizes[first].pow(2).sum() if same else 0))
        if total <= 0:
            empty = (torch.zeros(0, dtype=torch.int64),) * 2
            return PairSample(empty, empty, 0.0)
        left, right = self._proposals(first), self._proposals(second)
        if total <= _PAIRS:  # few enough to measure exactly
            i, j = torch.cartesian_prod(torch.arange(len(left[0])), torch.arange(len(right[0]))).unbind(dim=1)
        else:
            i, j = (torch.randint(len(end[0]), (_PAIRS,), generator=generator) for end in (left, right))
        left, right = (left[0][i], left[1][i]), (right[0][j], right[1][j])
        different = left[0] != right[0]  # leaving out pairs within a bag keeps the draw uniform over the others
        left, right = ((bags[different], proposals[different]) for bags, proposals in (left, right))
        return PairSample(left, right, total * (1 if same else 2))  # a positive and a negative bag, in both orders

    def _proposals(self, bags: Tensor) -> tuple[Tensor, Tensor]:
        """List all proposals of some bags: the bag (n,) and the index (n,) of each."""
        row, proposal = torch.nonzero(self.target.bags.valid.cpu()[bags], as_tuple=True)
        return bags[row], proposal

    @torch.no_grad()
    def without_selection(self, label: int, transfer: TransferScores, class_scores: ClassScores | None) -> float:
        """Return L(psi, 0) of class `label`; `class_scores` is None during the warm-up."""
        energy, target, sample = self.energy, self.target, self.samples[label]
        lambda2 = energy.lambda2 if class_scores is not None else 1.0
        unary = lambda2 * transfer.unary.of_class(target.bags.features(sample.bags))
        if class_scores is not None and lambda2 < 1:
            unary = unary + (1 - lambda2) * class_scores.unary.of_class(target.class_bags.features(sample.bags), label)
        losses = cross_entropy(unary, torch.zeros_like(unary)) * target.bags.valid[sample.bags.to(unary.device)]
        total = float(losses.double().sum()) * sample.weight
        scale = pair_weight(energy.alpha, energy.alpha_scale, len(target.positives[label]))
        for pairs in sample.pairs:
            if len(pairs.left[0]):
                scores = self._mixed(pairs, transfer, class_scores, label)
                mean = float(cross_entropy(scores, torch.zeros_like(scores)).double().mean())
                total += scale * pairs.total * mean
        return total

    def _mixed(
        self, pairs: PairSample, transfer: TransferScores, class_scores: ClassScores | None, label: int
    ) -> Tensor:
        """Return the mixed scores of the sampled pairs, in both orders: (2, m)."""
        target, lambda1 = self.target, self.energy.lambda1 if class_scores is not None else 1.0
        ends = (pairs.left, pairs.right)
        e, f = (target.bags.chosen(bags, proposals[:, None]) for bags, proposals in ends)
        mixed: Tensor = lambda1 * torch.stack([transfer.relation(*pair)[:, 0, 0, 0] for pair in ((e, f), (f, e))])
        if class_scores is not None and lambda1 < 1:
            e, f = (target.class_bags.chosen(bags, proposals[:, None]) for bags, proposals in ends)
            labels = torch.full((len(e),), label, device=e.device)
            both = [class_scores.relation.of_classes(*pair, labels)[:, 0, 0] for pair in ((e, f), (f, e))]
            mixed = mixed + (1 - lambda1) * torch.stack(both)
        return mixed
