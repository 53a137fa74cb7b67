"""Pair scores by the cosine of two embedded proposals: the same class where they point the same way.

    z(e) = V e / |V e|
    s(e, e') = w^T (z(e) * z(e')) + b

It has fewer ways than the relation network to learn the source's classes by heart, so it says more of new ones. The
embedding is shared by all classes; each class has a weight vector w_c of its own. A sum over chosen proposals is a
product with the sum of their embeddings: nothing is held or computed for every pair and dimension.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pairloc.scores.pair_function import Backend, PairFunction, PairKernel

_SCALE, _BIAS = 10.0, -2.0  # at first: log odds of 8 for proposals that look the same, -2 for unrelated ones


@dataclass(frozen=True)
class Embedded:
    """What pair scores need of every proposal: s(e, e') = sum_k w_k z_k z'_k + b."""

    direction: Tensor  # (..., d) z
    weight: Tensor  # (d,) w
    bias: Tensor  # () b


class CosineScores(PairFunction):
    """A cosine of learned embeddings: one class-generic score, or one per class on a shared embedding."""

    def __init__(self, d: int, classes: int = 1) -> None:
        super().__init__()
        self.d = d
        self.embedding = nn.Linear(d, d, bias=False)  # V
        self.score = nn.Linear(d, classes)  # w_c, b_c
        nn.init.orthogonal_(self.embedding.weight)
        nn.init.constant_(self.score.weight, _SCALE)
        nn.init.constant_(self.score.bias, _BIAS)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairFunction`."""
        z, other = self.directions(left), self.directions(right)
        return torch.einsum("nld,nrd,cd->nlrc", z, other, self.score.weight) + self.score.bias

    def of_classes(self, left: Tensor, right: Tensor, labels: Tensor) -> Tensor:
        """See `PairFunction`."""
        weight, bias = self.score.weight[labels], self.score.bias[labels]  # (n, d), (n,)
        z = self.directions(left) * weight[:, None]
        return z @ self.directions(right).transpose(1, 2) + bias[:, None, None]

    def kernel(self, features: Tensor, label: int, backend: Backend, memory: int) -> PairKernel:
        """See `PairFunction`; cosines are matrix products and need no backend."""
        return Cosines(self.project(features, label), memory)

    def directions(self, features: Tensor) -> Tensor:
        """z(e): (..., d) -> (..., d)."""
        return nn.functional.normalize(self.embedding(features), dim=-1)

    @torch.no_grad()
    def project(self, features: Tensor, label: int = 0) -> Embedded:
        """Embed proposals (..., d) once, for the pair scores of a class."""
        return Embedded(self.directions(features), self.score.weight[label].detach(), self.score.bias[label].detach())


class Cosines:
    """Pair scores of M bags of B proposals, from their embeddings: matrix products, the same on every device."""

    def __init__(self, embedded: Embedded, memory: int) -> None:
        self.embedded, self.memory = embedded, memory  # (M, B, d)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`; both directions are the same."""
        own = self.embedded
        _, b, d = own.direction.shape
        out = own.direction.new_empty(len(left), b, b)
        few = max(1, self.memory // (3 * own.direction.element_size() * b * d))  # pairs of bags at a time
        for first in range(0, len(left), few):
            some = slice(first, first + few)
            mine, other = own.direction[left[some]] * own.weight, own.direction[right[some]]
            out[some] = 2 * (mine @ other.transpose(1, 2) + own.bias)
        return out

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairKernel`. One product for all bags; those that have a chosen proposal, which does not count, anew."""
        own = self.embedded
        several = (weights[:, None] if weights.ndim == 1 else weights).to(own.direction.dtype)  # (m, g)
        picked = own.direction[chosen_bags, chosen] * own.weight  # (m, d)
        every = torch.equal(bags, torch.arange(len(own.direction), device=bags.device))
        direction = own.direction if every else own.direction[bags]  # (n, B, d), not copied for a change of ICM
        apart = (bags[:, None] != chosen_bags).to(several.dtype)  # (n, m)
        scores = direction @ (picked.T @ several)  # (n, B, g)
        rows = torch.nonzero((apart == 0).any(dim=1))[:, 0]
        scores[rows] = direction[rows] @ torch.einsum("nm,mg,md->ndg", apart[rows], several, picked)
        scores += own.bias * (apart @ several)[:, None]
        return (2 * scores).permute(2, 0, 1).reshape(*weights.shape[1:], *scores.shape[:2])
