"""Cosine pair scores: two proposals score high if their embeddings point the same way.

    z(e) = V e / |V e|
    s(e, e') = w^T (z(e) * z(e')) + b

The cosine is less flexible than the relation network, so it memorises the source classes less and generalises better
to new ones. All classes share the embedding; each class has its own weight vector w_c. The sum of the scores with
chosen proposals is one product with the sum of their embeddings, so nothing is stored or computed per pair and
dimension.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pairloc.scores.pair_function import Backend, PairFunction, PairKernel

_SCALE, _BIAS = 10.0, -2.0  # initial log odds: 8 for identical proposals, -2 for unrelated ones


@dataclass(frozen=True)
class Embedded:
    """Embedded proposals and the weights of one class: s(e, e') = sum_k w_k z_k z'_k + b."""

    direction: Tensor  # (..., d) z
    weight: Tensor  # (d,) w
    bias: Tensor  # () b


class CosineScores(PairFunction):
    """Cosine of learned embeddings: one class-generic score, or one score per class on a shared embedding."""

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
        """See `PairFunction`; cosines are matrix products and ignore `backend`."""
        return Cosines(self.project(features, label), memory)

    def directions(self, features: Tensor) -> Tensor:
        """z(e): (..., d) -> (..., d)."""
        return nn.functional.normalize(self.embedding(features), dim=-1)

    @torch.no_grad()
    def project(self, features: Tensor, label: int = 0) -> Embedded:
        """Embed proposals (..., d) once for the pair scores of class `label`."""
        return Embedded(self.directions(features), self.score.weight[label].detach(), self.score.bias[label].detach())


class Cosines:
    """Pair scores of M bags of B proposals as matrix products of their embeddings, on any device."""

    def __init__(self, embedded: Embedded, memory: int) -> None:
        self.embedded, self.memory = embedded, memory  # (M, B, d)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`; the score is symmetric, so both directions are equal."""
        embedded = self.embedded
        _, b, d = embedded.direction.shape
        out = embedded.direction.new_empty(len(left), b, b)
        batch_size = max(1, self.memory // (3 * embedded.direction.element_size() * b * d))  # pairs of bags
        for first in range(0, len(left), batch_size):
            batch = slice(first, first + batch_size)
            weighted, other = embedded.direction[left[batch]] * embedded.weight, embedded.direction[right[batch]]
            out[batch] = 2 * (weighted @ other.transpose(1, 2) + embedded.bias)
        return out

    def table(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`: one matrix product."""
        embedded = self.embedded
        weighted = (embedded.direction[left] * embedded.weight).flatten(0, 1)  # (n B, d)
        scores = weighted @ embedded.direction[right].flatten(0, 1).T  # (n B, m B)
        table: Tensor = (2 * (scores + embedded.bias)).unflatten(0, (len(left), -1))
        return table

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairKernel`. One product serves all bags; bags with a chosen proposal are recomputed without it."""
        embedded = self.embedded
        columns = (weights[:, None] if weights.ndim == 1 else weights).to(embedded.direction.dtype)  # (m, g)
        weighted = embedded.direction[chosen_bags, chosen] * embedded.weight  # (m, d)
        all_bags = torch.equal(bags, torch.arange(len(embedded.direction), device=bags.device))
        # (n, B, d); ICM passes all bags for every change, so that case must not copy.
        direction = embedded.direction if all_bags else embedded.direction[bags]
        different = (bags[:, None] != chosen_bags).to(columns.dtype)  # (n, m)
        scores = direction @ (weighted.T @ columns)  # (n, B, g)
        rows = torch.nonzero((different == 0).any(dim=1))[:, 0]
        scores[rows] = direction[rows] @ torch.einsum("nm,mg,md->ndg", different[rows], columns, weighted)
        scores += embedded.bias * (different @ columns)[:, None]
        return (2 * scores).permute(2, 0, 1).reshape(*weights.shape[1:], *scores.shape[:2])
