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
from pairloc.localization.evidence import Evidence
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.recurrence import References, recurrence
from pairloc.localization.target import Target
from pairloc.scores import MixedPairs, PairScorer
from pairloc.settings import EnergySettings, LocalizationSettings


class ClassView:
    """The M positive bags of a class, or a group of them; their transfer scores are computed once for all folds."""

    def __init__(
        self,
        target: Target,
        transfer: TransferScores,
        label: int,
        settings: LocalizationSettings,
        energy: EnergySettings | None = None,
        group: Tensor | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        self.target, self.transfer, self.label, self.settings = target, transfer, label, settings
        self.evidence = evidence if evidence is None or group is None else evidence.of(group)
        self.energy = settings.energy if energy is None else energy
        positives = target.positives[label]
        self.bags = positives if group is None else positives[group]  # (M,)

    def __len__(self) -> int:
        return len(self.bags)

    @cached_property
    def rows(self) -> Tensor:
        """The bags on the device of the target's tensors: (M,)."""
        return self.bags.to(self.target.bags.device)

    @cached_property
    def boxes(self) -> Tensor:
        """All proposals: (M, B, 4)."""
        return self.target.bags.boxes[self.rows]

    @cached_property
    def valid(self) -> Tensor:
        """Which proposals exist: (M, B)."""
        return self.target.bags.valid[self.rows]

    @property
    def known(self) -> Tensor | None:
        """Probabilities of the known classes, (M, B, K), zero for the one that the tag is; None if there are none."""
        if self.target.known is None:
            return None
        known = self.target.known[self.rows].float()  # a copy
        if self._own is not None:
            known[..., self._own] = 0.0
        return known

    @property
    def own(self) -> Tensor | None:
        """Probability of the known class that the tag is, (M, B); None if it is new."""
        if self.target.known is None or self._own is None:
            return None
        return self.target.known[self.rows][..., self._own].float()

    @property
    def _own(self) -> int | None:
        return self.target.own[self.label] if self.target.own else None

    @property
    def recurrence(self) -> Tensor | None:
        """How well proposals match the other bags with the tag: (3, M, B); None without pair scores or other bags."""
        return self._compared.get("with")

    @property
    def elsewhere(self) -> Tensor | None:
        """How well proposals match bags without the tag: (3, M, B); None without pair scores or such bags."""
        return self._compared.get("without")

    @cached_property
    def _compared(self) -> dict[str, Tensor]:
        """`recurrence` and `elsewhere`, which need the same features."""
        lacking = ~self.target.tagged[:, self.label] & self.target.bags.valid.any(dim=1).cpu()
        compared = {"with": (self.target.positives[self.label], 2), "without": (torch.nonzero(lacking)[:, 0], 1)}
        sets = {
            name: References.draw(self.target, self.transfer, bags, self.settings.seed)
            for name, (bags, fewest) in compared.items()
            if self.energy.alpha and len(bags) >= fewest
        }
        return recurrence(self.target, self.transfer, self.bags, sets) if sets else {}

    @cached_property
    def _features(self) -> Tensor:
        return self.target.bags.features(self.bags)  # (M, B, d)

    @cached_property
    def class_features(self) -> Tensor:
        """Features of all proposals, as the class scores use them: (M, B, d')."""
        return self.target.class_bags.features(self.bags)

    @cached_property
    def transfer_unary(self) -> Tensor:
        """psi^U of all proposals: (M, B)."""
        return self.transfer.unary.of_class(self._features)

    @cached_property
    def _transfer_pairs(self) -> PairScorer:
        return PairScorer(self.transfer.relation, self._features)

    def unary(self, class_scores: ClassScores | None) -> Tensor:
        """Combine the evidence terms: (M, B), minus infinity for proposals that may not be selected."""
        allowed = self.target.selectable(self.bags, self.settings.unary.max_area)
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

    def problem(
        self, class_scores: ClassScores | None, selection: Tensor | None = None, held_out: Tensor | None = None
    ) -> ClassProblem:
        """Return the problem of all bags together.

        With a mask `held_out` (M,), only those bags are solved; the others are anchors, fixed to their proposals in
        `selection` (M,).
        """
        unary, pairs = self.unary(class_scores), self.pairs(class_scores)
        bags, anchors = None, None
        if held_out is not None:
            bags = torch.nonzero(held_out)[:, 0].to(unary.device)
            unary = unary[bags]
        if held_out is not None and selection is not None:
            fixed = torch.nonzero(~held_out)[:, 0]
            anchors = Anchors.of(fixed.to(unary.device), selection[fixed].to(unary.device))
        alpha = self.energy.alpha * (1.0 if self.evidence is None else self.evidence.combination.alpha)
        return ClassProblem(unary, pairs, anchors, alpha=alpha, alpha_scale=self.energy.alpha_scale, bags=bags)

    def groups(self) -> Iterator[tuple[Tensor, "ClassView"]]:
        """Yield the rows (m,) and the view of random groups of at most `max_compared_bags` bags.

        Only bags of the same group are compared. The mean pair score over a group estimates the mean over the class, at
        a cost linear in the number of bags.
        """
        limit = self.energy.max_compared_bags
        if not 0 < limit < len(self):
            yield torch.arange(len(self)), self
            return
        count = math.ceil(len(self) / max(limit, 2))
        order = np.random.default_rng(self.settings.seed).permutation(len(self))
        for group in np.array_split(order, count):
            rows = torch.from_numpy(np.sort(group))
            yield (
                rows,
                ClassView(self.target, self.transfer, self.label, self.settings, self.energy, rows, self.evidence),
            )

    def conditional(self, scores: tuple[ClassScores, ...], selection: Tensor, fold: Tensor) -> Tensor:
        """Score every proposal (M, B) with the other bags fixed to their proposals in `selection` (M,).

        `scores` has one set of class scores per fold: each bag, with its `fold` (M,), is scored by those that were not
        trained on it. Without class scores, the transfer scores are used.
        """
        result = torch.zeros(len(self), self.target.bags.size, device=self.target.bags.device)
        for rows, view in self.groups():
            for f, class_scores in enumerate(scores or (None,)):
                held_out = fold[rows] == f if len(scores) > 1 else torch.ones(len(rows), dtype=torch.bool)
                if held_out.any():
                    problem = view.problem(class_scores, selection[rows], held_out)
                    solved = rows[held_out]
                    result[solved.to(result.device)] = problem.conditional(selection[solved])
        return result
