"""Unary scores: how much a proposal looks like an object, or like class c (paper, "Scoring Functions")."""

import torch
from torch import Tensor, nn


class UnaryScores(nn.Module):
    """psi^U(e) = w^T e + b: one class-generic score, or one score per class."""

    def __init__(self, d: int, classes: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(d, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Scores of proposals: (..., d) -> (..., classes)."""
        scores: Tensor = self.linear(features)
        return scores

    @torch.no_grad()
    def set(self, weights: Tensor) -> None:
        """Copy in weights (classes, d + 1) whose last column is the bias."""
        self.linear.weight.copy_(weights[:, :-1])
        self.linear.bias.copy_(weights[:, -1])

    def of_classes(self, features: Tensor, labels: Tensor) -> Tensor:
        """Scores of one class per row, `labels` (n,), with gradients: (n, m, d) -> (n, m)."""
        return torch.einsum("nmd,nd->nm", features, self.linear.weight[labels]) + self.linear.bias[labels][:, None]

    @torch.no_grad()
    def of_class(self, features: Tensor, label: int = 0) -> Tensor:
        """Scores of one class, without gradients: (..., d) -> (...)."""
        weight, bias = self.linear.weight[label], self.linear.bias[label]
        return features.to(weight.dtype) @ weight + bias
