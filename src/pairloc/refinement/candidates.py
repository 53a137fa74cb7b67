"""What a refinement may look at besides the boxes themselves."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """All proposals of M bags, with their scores; minus infinity where a proposal may not be selected."""

    boxes: Tensor  # (M, B, 4)
    scores: Tensor  # (M, B)
