"""Refinement: a chain of functions from boxes to boxes.

To add one: a file with a function of the kind `Refinement`, and its line in `CHAIN`. A setting of its own switches it
off, and it then gives back the boxes it got.
"""

from collections.abc import Callable

from torch import Tensor

from pairloc.refinement.candidates import Candidates
from pairloc.refinement.voting import vote
from pairloc.settings import BoxSettings

Refinement = Callable[[Tensor, Candidates, BoxSettings], Tensor]

CHAIN: tuple[Refinement, ...] = (vote,)


def refine(boxes: Tensor, candidates: Candidates, settings: BoxSettings) -> Tensor:
    """Boxes (M, 4) after every refinement in turn: (M, 4)."""
    for refinement in CHAIN:
        boxes = refinement(boxes, candidates, settings)
    return boxes


__all__ = ["CHAIN", "Candidates", "Refinement", "refine"]
