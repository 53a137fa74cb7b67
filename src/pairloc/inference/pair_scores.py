"""What re-localization asks of pair scores: blocks of them on demand, never all of them at once."""

from typing import Literal, Protocol

import torch
from torch import Tensor

AlphaScale = Literal["none", "per_bag"]


class PairScores(Protocol):
    """Pair scores of the bags of one class, both ordered directions summed: score(e, e') + score(e', e)."""

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """All proposals of bags `left` (n,) against all of bags `right` (n,) -> (n, B, B)."""

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """All proposals of `bags` (n,) against m chosen proposals, summed with `weights` (m,) -> (n, B).

        `chosen` (m,) are proposals of `chosen_bags` (m,). A bag is not compared with itself. With weights (m, g) there
        are g sums, (g, n, B).
        """


class PairTable:
    """Pair scores that are all there, (M, M, B, B): for small classes, and as the reference in tests."""

    def __init__(self, table: Tensor) -> None:
        self.both = table + table.permute(1, 0, 3, 2)  # (M, M, B, B)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairScores`."""
        return self.both[left, right]

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairScores`."""
        scores = self.both.transpose(2, 3)[bags[:, None], chosen_bags, chosen]  # (n, m, B)
        scores = scores * (bags[:, None] != chosen_bags)[..., None]
        return torch.einsum("nmb,m...->...nb", scores, weights.to(scores.dtype))


class NoPairs:
    """Pair scores that are all zero: alpha = 0."""

    def __init__(self, proposals: int, device: torch.device | str = "cpu") -> None:
        self._proposals, self._device = proposals, device  # B

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairScores`."""
        return torch.zeros(len(left), self._proposals, self._proposals, device=self._device)

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairScores`."""
        return torch.zeros(*weights.shape[1:], len(bags), self._proposals, device=self._device)


def pair_weight(alpha: float, alpha_scale: AlphaScale, bags: float) -> float:
    """The weight of one pair score among so many bags: alpha, or alpha shared out over the other bags."""
    return alpha / max(bags - 1, 1) if alpha_scale == "per_bag" else alpha
