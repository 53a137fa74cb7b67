"""One target class: its scored positive bags, and the problems that re-localization solves for it."""

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
    """The M positive bags of a class; their transfer scores are computed once and shared by all folds."""

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
        """Features of all proposals, as the class scores use them: (M, B, d')."""
        return self.target.class_bags.features(self.target.positives[self.label])

    @cached_property
    def transfer_unary(self) -> Tensor:
        """psi^U of all proposals: (M, B)."""
        return self.transfer.unary.of_class(self._features)

    @cached_property
    def _transfer_pairs(self) -> PairScorer:
        return PairScorer(self.transfer.relation, self._features)

    def unary(self, class_scores: ClassScores | None) -> Tensor:
        """Combine the evidence terms: (M, B), minus infinity for proposals that may not be selected."""
        allowed = self.target.selectable(self.target.positives[self.label], self.settings.unary.max_area)
        return evidence.combined(self, class_scores).masked_fill(~allowed, -torch.inf)

    def pairs(self, class_scores: ClassScores | None) -> PairScores:
        """Return (1 - lambda1) psi^P_c + lambda1 psi^P, or psi^P alone without `class_scores`."""
        if not self.energy.alpha:
            return NoPairs(self.target.bags.size, self.target.bags.device)
        lambda1 = self.energy.lambda1 if class_scores is not None else 1.0
        class_pairs = None
        if class_scores is not None and lambda1 < 1:
            class_pairs = PairScorer(class_scores.relation, self.class_features, label=self.label)
        return MixedPairs(class_pairs, self._transfer_pairs if lambda1 else None, lambda1)

    def problem(self, class_scores: ClassScores | None) -> ClassProblem:
        """Return the problem of all bags together."""
        return ClassProblem(
            self.unary(class_scores),
            self.pairs(class_scores),
            alpha=self.energy.alpha,
            alpha_scale=self.energy.alpha_scale,
        )

    def problems(
        self, class_scores: ClassScores | None, selection: Tensor | None = None, held_out: Tensor | None = None
    ) -> Iterator[tuple[Tensor, ClassProblem]]:
        """Yield the rows (m,) and the problem of every group of bags that are compared with each other.

        With a mask `held_out` (M,), only those bags are solved; the other bags of the group are anchors, fixed to their
        proposals in `selection` (M,).
        """
        unary, pairs = self.unary(class_scores), self.pairs(class_scores)
        for group in self.groups():
            rows = group if held_out is None else group[held_out[group]]
            if not len(rows):
                continue
            anchors = None
            if held_out is not None and selection is not None:
                fixed = group[~held_out[group]]
                anchors = Anchors.of(fixed.to(unary.device), selection[fixed].to(unary.device))
            on_device = rows.to(unary.device)
            yield (
                rows,
                ClassProblem(
                    unary[on_device],
                    pairs,
                    anchors,
                    alpha=self.energy.alpha,
                    alpha_scale=self.energy.alpha_scale,
                    bags=on_device,
                ),
            )

    def groups(self) -> list[Tensor]:
        """Split the bags of the class into random groups of at most `max_compared_bags`.

        The mean pair score over a group estimates the mean over the class, at a cost linear in the number of bags.
        """
        limit = self.energy.max_compared_bags
        if not 0 < limit < len(self):
            return [torch.arange(len(self))]
        count = math.ceil(len(self) / max(limit, 2))
        order = np.random.default_rng(self.settings.seed).permutation(len(self))
        return [torch.from_numpy(np.sort(group)) for group in np.array_split(order, count)]

    def conditional(self, scores: tuple[ClassScores, ...], selection: Tensor, fold: Tensor) -> Tensor:
        """Score every proposal (M, B) with the other bags fixed to their proposals in `selection` (M,).

        `scores` has one set of class scores per fold: each bag, with its `fold` (M,), is scored by those that were not
        trained on it. Without class scores, the transfer scores are used.
        """
        result = torch.zeros(len(self), self.target.bags.size, device=self.target.bags.device)
        for f, class_scores in enumerate(scores or (None,)):
            held_out = fold == f if len(scores) > 1 else torch.ones(len(self), dtype=torch.bool)
            for rows, problem in self.problems(class_scores, selection, held_out):
                result[rows.to(result.device)] = problem.conditional(selection[rows])
        return result
