"""The relation network: how much two proposals look like the same class (paper, appendix).

    E(e, e') = tanh(W1 [e, e'] + b1) * sigmoid(W2 [e, e'] + b2) + (e + e') / 2
    s(e, e') = w^T E(e, e') + b

Since W [e, e'] = Wa e + Wb e', each proposal is projected once, and a pair costs 2 d gates and no matrix product. All
classes share the embedding; each class has its own weight vector w_c.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pairloc.scores.pair_function import Backend, PairFunction, PairKernel


@dataclass(frozen=True)
class Projected:
    """Projections of single proposals, from which pair scores are computed: (..., d) each, `linear` is (...).

    s(e, e') = sum_k w_k tanh(t1 + t2') sigmoid(g1 + g2') + linear + linear' + b.
    """

    tanh_first: Tensor  # W1a e + b1
    tanh_second: Tensor  # W1b e
    gate_first: Tensor  # W2a e + b2
    gate_second: Tensor  # W2b e
    linear: Tensor  # w^T e / 2
    weight: Tensor  # (d,) w
    bias: Tensor  # () b


class RelationScores(PairFunction):
    """The paper's relation network (appendix): one class-generic score, or one score per class on a shared embedding.

        s(e, e') = w^T (tanh(W1 [e, e'] + b1) sigmoid(W2 [e, e'] + b2) + (e + e') / 2) + b

    Parameters
    ----------
    d : dimensions of a feature
    classes : number of scores

    Examples
    --------
    >>> relation = RelationScores(4, classes=2)
    >>> relation(torch.randn(1, 3, 4), torch.randn(1, 5, 4)).shape  # all pairs of 3 and 5 proposals, for both classes
    torch.Size([1, 3, 5, 2])
    """

    def __init__(self, d: int, classes: int = 1) -> None:
        super().__init__()
        self.d = d
        self.tanh = nn.Linear(2 * d, d)  # W1, b1
        self.gate = nn.Linear(2 * d, d)  # W2, b2
        self.score = nn.Linear(d, classes)  # w_c, b_c

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores of all pairs, with gradients: (n, L, d), (n, R, d) -> (n, L, R, classes)."""
        scores: Tensor = self.score(self.embed(left, right))
        return scores

    def of_classes(self, left: Tensor, right: Tensor, labels: Tensor) -> Tensor:
        """Scores of one class per row, `labels` (n,), with gradients: (n, L, d), (n, R, d) -> (n, L, R)."""
        weight, bias = self.score.weight[labels], self.score.bias[labels]  # (n, d), (n,)
        return torch.einsum("nlrd,nd->nlr", self.embed(left, right), weight) + bias[:, None, None]

    def embed(self, left: Tensor, right: Tensor) -> Tensor:
        """E(e, e') of all pairs: (n, L, d), (n, R, d) -> (n, L, R, d)."""
        tanh, gate = self._paired(self.tanh, left, right), self._paired(self.gate, left, right)  # (n, L, R, d)
        return torch.tanh(tanh) * torch.sigmoid(gate) + (left[:, :, None] + right[:, None]) / 2

    def kernel(self, features: Tensor, label: int, backend: Backend, memory: int) -> PairKernel:
        """See `PairFunction`."""
        from pairloc.scores.eager import Eager

        projected = self.project(features, label)
        if backend == "triton":
            from pairloc.scores.pairs_triton import TritonPairs

            return TritonPairs(projected)
        return Eager(projected, memory, compiled=backend == "compiled")

    @staticmethod
    def _paired(layer: nn.Linear, left: Tensor, right: Tensor) -> Tensor:
        """W [e, e'] + b of all pairs, computed as Wa e + Wb e' + b: (n, L, d), (n, R, d) -> (n, L, R, d)."""
        first, second = layer.weight.chunk(2, dim=1)
        return (left @ first.T + layer.bias)[:, :, None] + (right @ second.T)[:, None]

    @torch.no_grad()
    def project(self, features: Tensor, label: int = 0) -> Projected:
        """Project proposals (..., d) once for the pair scores of class `label`."""
        weight, bias = self.score.weight[label].detach(), self.score.bias[label].detach()
        tanh, gate = self._halves(self.tanh, features), self._halves(self.gate, features)
        return Projected(*tanh, *gate, features @ weight / 2, weight, bias)

    @staticmethod
    def _halves(layer: nn.Linear, features: Tensor) -> tuple[Tensor, Tensor]:
        """Wa e + b and Wb e: (..., d) -> (..., d) each."""
        first, second = layer.weight.chunk(2, dim=1)
        return features @ first.T + layer.bias, features @ second.T
