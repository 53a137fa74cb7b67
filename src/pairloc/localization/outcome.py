"""What a recipe gives to the engine."""

from dataclasses import dataclass

from torch import Tensor

from pairloc.localization.alternate import State
from pairloc.settings import BoxSettings


@dataclass(frozen=True)
class Outcome:
    """The selection of every class, and what is known of every proposal."""

    state: State
    scores: tuple[Tensor, ...]  # (M, B) of every class: of all proposals while the other bags keep theirs
    agreement: tuple[Tensor, ...]  # (M,) of every class
    confidence: tuple[Tensor, ...]  # (M,) of every class
    boxes: BoxSettings  # how the selected boxes are refined
