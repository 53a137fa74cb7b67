"""Re-localization of a class as learning asks for it: with mixed scores, of all its bags or of those held out."""

import torch
from torch import Tensor

from pairloc.inference.relocalize import PairScores, partition, relocalize
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.target import Selection, Target
from pairloc.scores.mix import MixedPairs, mix_unary
from pairloc.scores.pairs import PairScorer
from pairloc.settings import LearningSettings

_LARGE = 0.5  # share of its picture beyond which a proposal loses score


def mixed_scores(
    target: Target, transfer: TransferScores, own: ClassScores | None, label: int, settings: LearningSettings
) -> tuple[Tensor, PairScores]:
    """Unary scores (M, B) and pair scores of a class's positive bags; by the transfer scores alone without `own`."""
    return _mixed(target, _generic(target, transfer, label, settings, alone=own is None), own, label, settings)


def _generic(
    target: Target, transfer: TransferScores, label: int, settings: LearningSettings, *, alone: bool
) -> tuple[Tensor, PairScorer | None]:
    """What the transfer scores say: unary scores (M, B), and pair scores where they count."""
    seen = target.transfer.features(target.positives[label])
    counts = settings.alpha > 0 and (alone or settings.lambda1 > 0)
    return transfer.unary.of_class(seen), PairScorer(transfer.relation, seen) if counts else None


def _mixed(
    target: Target,
    generic: tuple[Tensor, PairScorer | None],
    own: ClassScores | None,
    label: int,
    settings: LearningSettings,
) -> tuple[Tensor, PairScores]:
    bags = target.positives[label]
    lambda1, lambda2 = (settings.lambda1, settings.lambda2) if own is not None else (1.0, 1.0)
    unary, transferred = generic
    special = None
    if own is not None:
        seen = target.own.features(bags)
        unary = mix_unary(own.unary.of_class(seen, label), unary, lambda2)
        special = PairScorer(own.relation, seen, label=label) if lambda1 < 1 and settings.alpha > 0 else None
    allowed = target.transfer.selectable(bags, settings.largest)
    beyond = (target.transfer.share[bags.to(unary.device)] - _LARGE).clamp(min=0)
    pairs: PairScores = MixedPairs(special, transferred, lambda1) if settings.alpha > 0 else _NoPairs(unary)
    return (unary - settings.oversize * beyond).masked_fill(~allowed, -torch.inf), pairs


class _NoPairs:
    """Pair scores of no weight: alpha = 0."""

    def __init__(self, unary: Tensor) -> None:
        self._unary = unary  # (M, B)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """Zeros (n, B, B)."""
        b = self._unary.shape[1]
        return self._unary.new_zeros(len(left), b, b)

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Zeros (n, B), or (g, n, B)."""
        return self._unary.new_zeros(*weights.shape[1:], len(bags), self._unary.shape[1])


class _Some:
    """The pair scores of some bags among all."""

    def __init__(self, pairs: PairScores, bags: Tensor) -> None:
        self._pairs, self._bags = pairs, bags  # (m,)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairScores`."""
        return self._pairs.block(self._bags[left], self._bags[right])

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairScores`."""
        return self._pairs.against(self._bags[bags], self._bags[chosen_bags], chosen, weights)


def groups(bags: int, settings: LearningSettings) -> list[Tensor]:
    """The bags of a class 0 ... M - 1 in groups that are compared among themselves; one group unless settings say else.

    The mean pair score over a group is that over the class, estimated; the cost grows with the bags, not their square.
    """
    if not 0 < settings.group < bags:
        return [torch.arange(bags)]
    return [torch.from_numpy(group) for group in partition(bags, max(settings.group, 2), settings.seed)]


def relocalize_class(
    unary: Tensor, pairs: PairScores, settings: LearningSettings, before: Tensor | None, seed: int
) -> tuple[Tensor, Tensor]:
    """Select a proposal for every bag, and how much worse the next best is, (M,) each: mini-problems, then ICM.

    Never of a higher energy than `before`.
    """
    selection, gaps = torch.zeros(len(unary), dtype=torch.int64), torch.zeros(len(unary), dtype=torch.float64)
    for group in groups(len(unary), settings):
        own = group.to(unary.device)
        found = relocalize(
            unary[own], _Some(pairs, own), alpha=settings.alpha, alpha_scale=settings.alpha_scale, k=settings.k,
            init=settings.init, solver=settings.solver, iterations=settings.iterations, epochs=settings.epochs,
            seed=seed, previous=None if before is None else before[group],
        )  # fmt: skip
        selection[group], gaps[group] = found.selection.cpu(), found.gaps
    return selection, gaps


def relocalize_held(
    unary: Tensor, pairs: PairScores, settings: LearningSettings, before: Tensor, held: Tensor
) -> tuple[Tensor, Tensor]:
    """Select anew for the bags held out (M,) while the others keep their proposal of `before` (M,): selection and gaps.

    What the others add to a held-out bag's scores is part of its unary scores; their best proposal is the start of ICM.
    """
    selection, gaps = before.cpu().clone(), torch.full((len(unary),), torch.nan, dtype=torch.float64)
    for group in groups(len(unary), settings):
        own, rest = group[held[group]], group[~held[group]]
        if not len(own):
            continue
        here, there = own.to(unary.device), rest.to(unary.device)
        weight = weight_of_pairs(len(group), settings)
        conditional = unary[here]
        if len(rest) and weight:
            ones = torch.ones(len(rest), device=unary.device)
            conditional = conditional + weight * pairs.against(here, there, before[rest].to(unary.device), ones)
        found = relocalize(
            conditional, _Some(pairs, here), alpha=weight, alpha_scale="none", init="unary", epochs=settings.epochs,
            previous=before[own].to(unary.device),
        )  # fmt: skip
        selection[own], gaps[own] = found.selection.cpu(), found.gaps
    return selection, gaps


def conditional_scores(
    target: Target,
    transfer: TransferScores,
    scores: tuple[ClassScores, ...],
    selection: Selection,
    label: int,
    settings: LearningSettings,
    fold: Tensor,
) -> Tensor:
    """The score of every proposal while the other bags of a class keep theirs: (M, B).

    Of the class scores, one a fold, each bag is seen by those that never saw it; by the transfer scores without any.
    """
    own = fold[target.positives[label]]
    if not len(own):
        return torch.zeros(0, target.transfer.size, device=target.transfer.device)
    everywhere = torch.ones(len(own), dtype=torch.bool)
    generic = _generic(target, transfer, label, settings, alone=not scores)  # the same for every fold
    found = None
    for f, entry in enumerate(scores or (None,)):
        asked = own == f if len(scores) > 1 else everywhere
        unary, pairs = _mixed(target, generic, entry, label, settings)
        if settings.alpha > 0 and len(unary) > 1:
            unary = unary.clone()
            for group in groups(len(unary), settings):
                here, everyone = group[asked[group]].to(unary.device), group.to(unary.device)
                if len(here):
                    ones = torch.ones(len(everyone), device=unary.device)
                    summed = pairs.against(here, everyone, selection[label][group].to(unary.device), ones)
                    unary[here] += weight_of_pairs(len(everyone), settings) * summed
        found = unary if found is None else torch.where(asked.to(unary.device)[:, None], unary, found)
    assert found is not None
    return found


def energy(unary: Tensor, pairs: PairScores, settings: LearningSettings, selection: Tensor) -> float:
    """The energy of a selection."""
    kept = relocalize(
        unary, pairs, alpha=settings.alpha, alpha_scale=settings.alpha_scale, init=selection.to(unary.device), epochs=0
    )
    return kept.energy


def weight_of_pairs(bags: int, settings: LearningSettings) -> float:
    """The weight of a pair score among so many bags."""
    return settings.alpha / max(bags - 1, 1) if settings.alpha_scale == "per_bag" else settings.alpha
