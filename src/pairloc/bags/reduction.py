"""Centring and scaling of features for the score functions, with optional reduction of their dimensions."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reduction:
    """The affine map x -> (x - mean) @ matrix."""

    mean: Tensor  # (d,)
    matrix: Tensor  # (d, r)

    @classmethod
    def fit(cls, features: Tensor, r: int) -> "Reduction":
        """Fit to the features (n, d) of proposals: r principal components with a mean variance of 1.

        If r is 0 or at least d, the features are not reduced; each is scaled to unit variance.
        """
        values = features.double()
        mean = values.mean(dim=0)
        centred = values - mean
        d = values.shape[1]
        if not 0 < r < d:
            spread = centred.pow(2).mean(dim=0).sqrt()
            return cls(mean.float(), torch.diag(1 / spread.clamp(min=1e-3 * max(float(spread.max()), 1e-12))).float())
        variances, directions = torch.linalg.eigh(centred.T @ centred / max(len(values), 1))  # ascending
        top = directions[:, -r:].flip(1)
        scale = variances[-r:].clamp(min=0).mean().sqrt().clamp(min=1e-12)
        return cls(mean.float(), (top / scale).float())

    @property
    def d(self) -> int:
        """Number of dimensions after the reduction."""
        return self.matrix.shape[1]

    def to(self, device: str | torch.device) -> "Reduction":
        """Copy to a device."""
        return Reduction(self.mean.to(device), self.matrix.to(device))

    def __call__(self, features: Tensor) -> Tensor:
        """Features (..., d) -> (..., r) in single precision."""
        return (features.to(self.mean.dtype) - self.mean) @ self.matrix
