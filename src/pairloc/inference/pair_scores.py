"""The pair-score interface of re-localization: blocks of scores on demand, never all of them at once."""

from typing import Literal, Protocol

import torch
from torch import Tensor

AlphaScale = Literal["none", "per_bag"]


class PairScores(Protocol):
    """Pair scores of the bags of one class, both ordered directions summed: score(e, e') + score(e', e)."""

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores of all proposals of bags `left` (n,) with all proposals of bags `right` (n,) -> (n, B, B)."""

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the scores of all proposals of `bags` (n,) with m chosen proposals.

        The chosen proposals are `chosen` (m,) of bags `chosen_bags` (m,). Weights (m,) give one sum, (n, B); weights
        (m, g) give g sums, (g, n, B). A bag is never compared with itself.
        """


class PairTable:
    """Pair scores from a full table (M, M, B, B) of ordered scores: for small classes and as a reference in tests."""

    def __init__(self, table: Tensor) -> None:
        self.both = table + table.permute(1, 0, 3, 2)  # (M, M, B, B), both directions summed

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairScores`."""
        return self.both[left, right]

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairScores`."""
        scores = self.both.transpose(2, 3)[bags[:, None], chosen_bags, chosen]  # (n, m, B)
        scores = scores * (bags[:, None] != chosen_bags)[..., None]
        return torch.einsum("nmb,m...->...nb", scores, weights.to(scores.dtype))


class NoPairs:
    """Pair scores that are all zero, for alpha = 0."""

    def __init__(self, proposals: int, device: torch.device | str = "cpu") -> None:
        self._proposals, self._device = proposals, device  # B

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairScores`."""
        return torch.zeros(len(left), self._proposals, self._proposals, device=self._device)

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairScores`."""
        return torch.zeros(*weights.shape[1:], len(bags), self._proposals, device=self._device)


def pair_weight(alpha: float, alpha_scale: AlphaScale, bags: float) -> float:
    """Weight of one pair score in a problem of `bags` bags: alpha, or alpha / (bags - 1) with `per_bag`."""
    return alpha / max(bags - 1, 1) if alpha_scale == "per_bag" else alpha
