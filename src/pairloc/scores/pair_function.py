"""What a pair score is: the protocol that the relation network and the cosine follow.

To add one: a module of this kind in a file of its own, and its line in `PAIR_FUNCTIONS` in `scores/__init__.py`.
"""

from typing import Literal, Protocol

from torch import Tensor, nn

Backend = Literal["eager", "compiled", "triton"]


class PairKernel(Protocol):
    """Pair scores of M bags of B proposals on demand, from what was computed once for every proposal."""

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """score(e, e') + score(e', e) of all proposals of bags `left` (n,) and `right` (n,) -> (n, B, B)."""

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The same of all proposals of `bags` (n,) with proposals `chosen` (m,) of `chosen_bags` (m,), by weight.

        The m scores are summed with `weights` (m,) -> (n, B), or (m, g) -> (g, n, B). A bag is not compared with
        itself.
        """


class PairFunction(nn.Module):
    """psi^P: one class-generic score, or one per class on a shared embedding. Its last layer is `score`."""

    d: int  # dimensions of a proposal's feature
    score: nn.Linear  # (embedding -> classes)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores of all pairs, with gradients: (n, L, d), (n, R, d) -> (n, L, R, classes)."""
        raise NotImplementedError

    def of_classes(self, left: Tensor, right: Tensor, labels: Tensor) -> Tensor:
        """The same for one class a row, `labels` (n,): (n, L, d), (n, R, d) -> (n, L, R)."""
        raise NotImplementedError

    def kernel(self, features: Tensor, label: int, backend: Backend, memory: int) -> PairKernel:
        """The pair scores of one class on bags (M, B, d), holding at most `memory` bytes per pair and dimension."""
        raise NotImplementedError
