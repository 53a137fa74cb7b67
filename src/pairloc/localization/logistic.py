"""Logistic regression over all proposals: the exact optimum that training on sampled proposals approaches."""

from collections.abc import Callable

import torch
from torch import Tensor

from pairloc.errors import InputError

_HISTORY = 10
_BATCH = {"cuda": 1024}  # bags per step; large batches keep a GPU busy, the default of 64 fits into a CPU's cache

Targets = Callable[[Tensor], tuple[Tensor, Tensor]]  # bags (n,) -> labels in 0 ... 1 and weights, each (n, B, C)


def fit_logistic(
    features: Callable[[Tensor], Tensor],
    targets: Targets,
    bags: Tensor,
    start: Tensor,
    *,
    decay: float,
    iterations: int = 40,
) -> Tensor:
    """Minimise the weighted cross-entropy plus decay / 2 |w|^2 by L-BFGS; return weights (C, d + 1), bias last.

    `features` and `targets` map bags (n,) to their features (n, B, d) and their labels and weights; `bags` (m,) are
    processed in batches. Raises an InputError if the features are not finite.
    """
    weights = start.clone().requires_grad_()
    batches = torch.split(bags, _BATCH.get(start.device.type, 64))
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=iterations, history_size=_HISTORY, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        with torch.no_grad():
            total, gradient = weights.new_zeros(()), torch.zeros_like(weights)
            for batch in batches:
                x, (y, weight) = features(batch).flatten(0, 1), (part.flatten(0, 1) for part in targets(batch))
                scores = x @ weights[:, :-1].T + weights[:, -1]
                # log(1 + e^s) - y s, and its gradient
                total += (weight * (torch.nn.functional.softplus(scores) - y * scores)).sum()
                residual = weight * (torch.sigmoid(scores) - y)
                gradient[:, :-1] += residual.T @ x
                gradient[:, -1] += residual.sum(dim=0)
            total += decay / 2 * weights[:, :-1].pow(2).sum()
            gradient[:, :-1] += decay * weights[:, :-1]
        weights.grad = gradient
        return total

    optimizer.step(loss)
    fitted = weights.detach()
    if not torch.isfinite(fitted).all():
        raise InputError("the scores are not finite, because the image features are not; run again in another folder")
    return fitted
