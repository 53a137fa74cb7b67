"""The proposals that a refinement may use besides the selected boxes."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """All proposals of M bags, with their scores."""

    boxes: Tensor  # (M, B, 4)
    scores: Tensor  # (M, B) minus infinity for proposals that may not be selected
