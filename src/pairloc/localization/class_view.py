"""One class of the target as the scores see it, and the problems that re-localization solves for it."""

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pairloc.inference.class_problem import Anchors, ClassProblem
from pairloc.inference.pair_scores import NoPairs, PairScores
from pairloc.localization import evidence
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.target import Target
from pairloc.scores import MixedPairs, PairScorer
from pairloc.settings import EnergySettings, LocalizationSettings


class ClassView:
    """The positive bags of a class; what the transfer scores say of them is computed once, for all folds."""

    def __init__(
        self,
        target: Target,
        transfer: TransferScores,
        label: int,
        settings: LocalizationSettings,
        energy: EnergySettings | None = None,
    ) -> None:
        self.target, self.transfer, self.label, self.settings = target, transfer, label, settings
        self.energy = settings.energy if energy is None else energy

    def __len__(self) -> int:
        return len(self.target.positives[self.label])

    @cached_property
    def _features(self) -> Tensor:
        return self.target.bags.features(self.target.positives[self.label])  # (M, B, d)

    @cached_property
    def class_features(self) -> Tensor:
        """Features of all proposals as the class scores see them: (M, B, d')."""
        return self.target.class_bags.features(self.target.positives[self.label])

    @cached_property
    def transfer_unary(self) -> Tensor:
        """psi^U of all proposals: (M, B)."""
        return self.transfer.unary.of_class(self._features)

    @cached_property
    def _transfer_pairs(self) -> PairScorer:
        return PairScorer(self.transfer.relation, self._features)

    def unary(self, own: ClassScores | None) -> Tensor:
        """The evidence combined: (M, B), minus infinity for proposals that may not be selected."""
        allowed = self.target.selectable(self.target.positives[self.label], self.settings.unary.max_area)
        return evidence.combined(self, own).masked_fill(~allowed, -torch.inf)

    def pairs(self, own: ClassScores | None) -> PairScores:
        """(1 - lambda1) psi^P_c + lambda1 psi^P; by the transfer scores alone without `own`."""
        if not self.energy.alpha:
            return NoPairs(self.target.bags.size, self.target.bags.device)
        lambda1 = self.energy.lambda1 if own is not None else 1.0
        special = None
        if own is not None and lambda1 < 1:
            special = PairScorer(own.relation, self.class_features, label=self.label)
        return MixedPairs(special, self._transfer_pairs if lambda1 else None, lambda1)

    def problem(self, own: ClassScores | None) -> ClassProblem:
        """The problem of all bags together."""
        return ClassProblem(
            self.unary(own), self.pairs(own), alpha=self.energy.alpha, alpha_scale=self.energy.alpha_scale
        )

    def problems(
        self, own: ClassScores | None, selection: Tensor | None = None, held: Tensor | None = None
    ) -> Iterator[tuple[Tensor, ClassProblem]]:
        """Rows (m,) of the class and their problem, group by group of bags that are compared with each other.

        With `held` (M,), those bags are solved and the others are anchors with their choice of `selection` (M,).
        """
        unary, pairs = self.unary(own), self.pairs(own)
        for group in self.groups():
            rows = group if held is None else group[held[group]]
            if not len(rows):
                continue
            anchors = None
            if held is not None and selection is not None:
                rest = group[~held[group]]
                anchors = Anchors.of(rest.to(unary.device), selection[rest].to(unary.device))
            here = rows.to(unary.device)
            yield (
                rows,
                ClassProblem(
                    unary[here], pairs, anchors, alpha=self.energy.alpha, alpha_scale=self.energy.alpha_scale, bags=here
                ),
            )

    def groups(self) -> list[Tensor]:
        """Random groups of at most `max_compared_bags` bags that cover the class.

        The mean pair score over a group estimates that over the class; the cost grows with the bags, not their square.
        """
        most = self.energy.max_compared_bags
        if not 0 < most < len(self):
            return [torch.arange(len(self))]
        count = math.ceil(len(self) / max(most, 2))
        order = np.random.default_rng(self.settings.seed).permutation(len(self))
        return [torch.from_numpy(np.sort(group)) for group in np.array_split(order, count)]

    def conditional(self, scores: tuple[ClassScores, ...], selection: Tensor, fold: Tensor) -> Tensor:
        """The score of every proposal while the other bags keep theirs of `selection` (M,): (M, B).

        Of the class scores, one a fold, each bag (of fold (M,)) is seen by those that never saw it; by the transfer
        scores without any.
        """
        found = torch.zeros(len(self), self.target.bags.size, device=self.target.bags.device)
        for f, own in enumerate(scores or (None,)):
            held = fold == f if len(scores) > 1 else torch.ones(len(self), dtype=torch.bool)
            for rows, problem in self.problems(own, selection, held):
                found[rows.to(found.device)] = problem.conditional(selection[rows])
        return found
