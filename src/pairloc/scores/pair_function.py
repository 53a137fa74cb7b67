"""The interface of pair scores, which the relation network and the cosine implement.

To add a pair score, write a `PairFunction` in a new file and add its line to `PAIR_FUNCTIONS` in `scores/__init__.py`.
"""

from typing import Literal, Protocol

from torch import Tensor, nn

Backend = Literal["eager", "compiled", "triton"]


class PairKernel(Protocol):
    """Pair scores of M bags of B proposals, computed on demand from projections of the single proposals."""

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """score(e, e') + score(e', e) of all proposals of bags `left` (n,) and `right` (n,) -> (n, B, B)."""

    def table(self, left: Tensor, right: Tensor) -> Tensor:
        """The same for each of the bags `left` (n,) with each of the bags `right` (m,) -> (n, B, m B)."""

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of score(e, e') + score(e', e) over chosen proposals e', for all proposals e of `bags` (n,).

        The chosen proposals are `chosen` (m,) of bags `chosen_bags` (m,). Weights (m,) give one sum, (n, B); weights
        (m, g) give g sums, (g, n, B). A bag is never compared with itself.
        """


def table_of_blocks(kernel: PairKernel, left: Tensor, right: Tensor) -> Tensor:
    """`PairKernel.table` from blocks, for kernels that have no faster way."""
    blocks = kernel.block(left.repeat_interleave(len(right)), right.repeat(len(left)))  # (n m, B, B)
    table: Tensor = blocks.unflatten(0, (len(left), len(right))).transpose(1, 2).flatten(2)
    return table


class PairFunction(nn.Module):
    """psi^P, trainable: one class-generic score, or one score per class on a shared embedding.

    The last layer is `score`.
    """

    d: int  # dimension of a proposal's feature vector
    score: nn.Linear  # (embedding -> classes)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores of all pairs, with gradients: (n, L, d), (n, R, d) -> (n, L, R, classes)."""
        raise NotImplementedError

    def of_classes(self, left: Tensor, right: Tensor, labels: Tensor) -> Tensor:
        """Scores of one class per row, `labels` (n,), with gradients: (n, L, d), (n, R, d) -> (n, L, R)."""
        raise NotImplementedError

    def kernel(self, features: Tensor, label: int, backend: Backend, memory: int) -> PairKernel:
        """Pair scores of class `label` for bags (M, B, d).

        `memory` limits the bytes of intermediate values that exist per pair and dimension.
        """
        raise NotImplementedError
