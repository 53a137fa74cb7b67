"""Logistic regression over every proposal: what sampled descent on unary scores tends to, found exactly."""

from collections.abc import Callable

import torch
from torch import Tensor

from pairloc.errors import InputError

_HISTORY = 10
_AT_A_TIME = {"cuda": 1024}  # bags: few of them stay in a CPU's cache, many keep a GPU from waiting for its next order

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
    """The weights (C, d + 1), the bias last, of the lowest weighted cross-entropy plus decay / 2 |w|^2, by L-BFGS.

    `features` gives the proposals (n, B, d) of some bags; a pass over `bags` (m,) holds a few of them at a time.
    """
    weights = start.clone().requires_grad_()
    chunks = torch.split(bags, _AT_A_TIME.get(start.device.type, 64))
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=iterations, history_size=_HISTORY, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        with torch.no_grad():
            total, slope = weights.new_zeros(()), torch.zeros_like(weights)
            for some in chunks:
                x, (y, weight) = features(some).flatten(0, 1), (part.flatten(0, 1) for part in targets(some))
                scores = x @ weights[:, :-1].T + weights[:, -1]
                # log(1 + e^s) - y s, and its slope
                total += (weight * (torch.nn.functional.softplus(scores) - y * scores)).sum()
                pull = weight * (torch.sigmoid(scores) - y)
                slope[:, :-1] += pull.T @ x
                slope[:, -1] += pull.sum(dim=0)
            total += decay / 2 * weights[:, :-1].pow(2).sum()
            slope[:, :-1] += decay * weights[:, :-1]
        weights.grad = slope
        return total

    optimizer.step(loss)
    found = weights.detach()
    if not torch.isfinite(found).all():
        raise InputError("the unary scores are not numbers: the features are not finite")
    return found
