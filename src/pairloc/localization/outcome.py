"""The result of a recipe, which the engine turns into a Localization."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pairloc.localization.alternate import HalfStep, State
from pairloc.localization.explanation import Explanation
from pairloc.settings import BoxSettings


@dataclass(frozen=True)
class Outcome:
    """The selection of every class, and the scores of all its proposals; tuples have one entry per class."""

    state: State
    scores: tuple[Tensor, ...]  # (M, B) scores of all proposals with the other bags fixed
    agreement: tuple[Tensor, ...]  # (M,)
    confidence: tuple[Tensor, ...]  # (M,)
    boxes: BoxSettings  # how to refine the selected boxes
    explanations: tuple[Explanation | None, ...] = ()  # None for a class without bags or learned evidence

    @property
    def is_explained(self) -> bool:
        """Whether the boxes were selected by learned evidence."""
        return any(explanation is not None for explanation in self.explanations)

    def with_history(self, history: tuple[HalfStep, ...], *, converged: bool = False) -> "Outcome":
        """Return a copy with the half steps that led to it."""
        return replace(self, state=replace(self.state, history=history, converged=converged))


def best_proposals(scores: Tensor) -> Tensor:
    """Return the index (M,) of the highest score (M, B) in every bag."""
    return scores.argmax(dim=1).cpu()


def highest_scored(scores: tuple[Tensor, ...], fold: Tensor, *, logits: bool = False) -> Outcome:
    """The outcome of a baseline that selects the highest score (M, B) in every bag of a class; boxes are not refined.

    The confidence of a box is its score, or its probability if scores are logits. `fold` (N,) is the fold of every bag.
    """
    selection = tuple(best_proposals(table) for table in scores)
    best = tuple(table.amax(dim=1).double().cpu() if len(table) else torch.zeros(0) for table in scores)
    confidence = tuple(map(torch.sigmoid, best)) if logits else best
    gaps = tuple(torch.zeros(len(chosen), dtype=torch.float64) for chosen in selection)
    return Outcome(State(selection, gaps, fold), scores, gaps, confidence, BoxSettings(voting_iou=0.0))
