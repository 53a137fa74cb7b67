"""The relation network: how much two proposals look like the same class (paper, appendix).

    E(e, e') = tanh(W1 [e, e'] + b1) * sigmoid(W2 [e, e'] + b2) + (e + e') / 2
    s(e, e') = w^T E(e, e') + b

Since W [e, e'] = Wa e + Wb e', each proposal is projected once, and a pair costs 2 d gates and no matrix product. The
embedding is shared by all classes; each class has a weight vector w_c of its own.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Variant = Literal["paper", "released"]
TRUNK = 640  # width of the released program's trunk


@dataclass(frozen=True)
class Projected:
    """What pair scores need of every proposal, once and for all: (..., d) each, and (...) for the linear part.

    s(e, e') = sum_k w_k tanh(f(t1 + t2')) sigmoid(f(g1 + g2')) + linear + linear' + b, with f = ReLU in the released
    variant and nothing otherwise.
    """

    tanh_first: Tensor  # W1a e + b1
    tanh_second: Tensor  # W1b e
    gate_first: Tensor  # W2a e + b2
    gate_second: Tensor  # W2b e
    linear: Tensor  # w^T e / 2
    weight: Tensor  # (d,) w
    bias: Tensor  # () b
    relu: bool


class RelationScores(nn.Module):
    """psi^P: one class-generic score, or one per class on a shared embedding.

    `variant="released"` is the authors' released program: a trunk (linear, batch norm, ReLU) of 640, and batch norm and
    ReLU before the gates.
    """

    def __init__(self, d: int, classes: int = 1, variant: Variant = "paper") -> None:
        super().__init__()
        if variant not in ("paper", "released"):
            raise ValueError(f"variant is {variant!r}, not 'paper' or 'released'")
        self.variant, self.d = variant, d
        width = d if variant == "paper" else TRUNK
        self.trunk = (
            nn.Sequential(nn.Linear(d, width), nn.BatchNorm1d(width), nn.ReLU()) if variant == "released" else None
        )
        self.tanh = nn.Linear(2 * width, width)  # W1, b1
        self.gate = nn.Linear(2 * width, width)  # W2, b2
        self.tanh_norm = nn.BatchNorm1d(width) if variant == "released" else None
        self.gate_norm = nn.BatchNorm1d(width) if variant == "released" else None
        self.score = nn.Linear(width, classes)  # w_c, b_c

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Scores of all pairs, with gradients: (n, L, d), (n, R, d) -> (n, L, R, classes)."""
        scores: Tensor = self.score(self.embed(left, right))
        return scores

    def of_classes(self, left: Tensor, right: Tensor, labels: Tensor) -> Tensor:
        """The same for one class a row, `labels` (n,): (n, L, d), (n, R, d) -> (n, L, R)."""
        weight, bias = self.score.weight[labels], self.score.bias[labels]  # (n, d), (n,)
        return torch.einsum("nlrd,nd->nlr", self.embed(left, right), weight) + bias[:, None, None]

    def embed(self, left: Tensor, right: Tensor) -> Tensor:
        """E(e, e') of all pairs: (n, L, d), (n, R, d) -> (n, L, R, width)."""
        left, right = self._trunk(left), self._trunk(right)
        tanh = self._paired(self.tanh, self.tanh_norm, left, right)  # (n, L, R, d)
        gate = self._paired(self.gate, self.gate_norm, left, right)
        return torch.tanh(tanh) * torch.sigmoid(gate) + (left[:, :, None] + right[:, None]) / 2

    def _trunk(self, features: Tensor) -> Tensor:
        if self.trunk is None:
            return features
        flat: Tensor = self.trunk(features.flatten(0, -2))
        return flat.view(*features.shape[:-1], -1)

    def _paired(self, layer: nn.Linear, norm: nn.BatchNorm1d | None, left: Tensor, right: Tensor) -> Tensor:
        """W [e, e'] + b of all pairs as Wa e + Wb e' + b, normalised where the variant does."""
        first, second = layer.weight.chunk(2, dim=1)
        pairs = (left @ first.T + layer.bias)[:, :, None] + (right @ second.T)[:, None]  # (n, L, R, d)
        if norm is None:
            return pairs
        normed: Tensor = norm(pairs.flatten(0, 2))
        return torch.relu(normed).view_as(pairs)

    @torch.no_grad()
    def project(self, features: Tensor, label: int = 0) -> Projected:
        """Project proposals (..., d) once, for the pair scores of a class; batch norm is as after training."""
        hidden = features
        if self.trunk is not None:
            linear, norm = self.trunk[0], self.trunk[1]
            assert isinstance(linear, nn.Linear)
            assert isinstance(norm, nn.BatchNorm1d)
            hidden = torch.relu(_normed(linear(features), norm))
        tanh_first, tanh_second = self._halves(self.tanh, self.tanh_norm, hidden)
        gate_first, gate_second = self._halves(self.gate, self.gate_norm, hidden)
        weight, bias = self.score.weight[label].detach(), self.score.bias[label].detach()
        return Projected(
            tanh_first,
            tanh_second,
            gate_first,
            gate_second,
            hidden @ weight / 2,
            weight,
            bias,
            self.variant == "released",
        )

    @staticmethod
    def _halves(layer: nn.Linear, norm: nn.BatchNorm1d | None, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Wa e + b and Wb e, with a batch norm after the layer folded in."""
        first, second = layer.weight.chunk(2, dim=1)
        a, b = hidden @ first.T + layer.bias, hidden @ second.T
        if norm is None:
            return a, b
        scale = _scale(norm)
        return _normed(a, norm), b * scale


def _scale(norm: nn.BatchNorm1d) -> Tensor:
    assert norm.running_var is not None
    return norm.weight / torch.sqrt(norm.running_var + norm.eps)


def _normed(values: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    assert norm.running_mean is not None
    return (values - norm.running_mean) * _scale(norm) + norm.bias
