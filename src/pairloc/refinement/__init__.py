"""Box refinement: a chain of functions from boxes to boxes.

To add a refinement, write a function of type `Refinement` in a new file and add its line to `CHAIN`. It needs a setting
that switches it off; it then returns its boxes unchanged.
"""

from collections.abc import Callable

from torch import Tensor

from pairloc.refinement.candidates import Candidates
from pairloc.refinement.voting import vote
from pairloc.settings import BoxSettings

Refinement = Callable[[Tensor, Candidates, BoxSettings], Tensor]

CHAIN: tuple[Refinement, ...] = (vote,)


def refine(boxes: Tensor, candidates: Candidates, settings: BoxSettings) -> Tensor:
    """Apply every refinement in turn to boxes (M, 4): (M, 4)."""
    for refinement in CHAIN:
        boxes = refinement(boxes, candidates, settings)
    return boxes


__all__ = ["CHAIN", "Candidates", "Refinement", "refine"]
