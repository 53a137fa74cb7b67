"""The result of a recipe, which the engine turns into a Localization."""

from dataclasses import dataclass

from torch import Tensor

from pairloc.localization.alternate import State
from pairloc.settings import BoxSettings


@dataclass(frozen=True)
class Outcome:
    """The selection of every class, and the scores of all its proposals; tuples have one entry per class."""

    state: State
    scores: tuple[Tensor, ...]  # (M, B) scores of all proposals with the other bags fixed
    agreement: tuple[Tensor, ...]  # (M,)
    confidence: tuple[Tensor, ...]  # (M,)
    boxes: BoxSettings  # how to refine the selected boxes
