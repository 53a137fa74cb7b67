"""The loss of a score x with label y: sigmoid cross-entropy (paper), or the focal loss of the released program.

Cross-entropy is linear in y, l(x, y) = l(x, 0) - y x, which makes re-localization a graph labelling problem. The focal
loss is not: with it that identity, and so the unified objective, no longer hold.
"""

from typing import Literal

import torch
from torch import Tensor, nn

Loss = Literal["cross-entropy", "focal"]
_GAMMA = 2


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """-(1 - y) log(1 - sigmoid(x)) - y log(sigmoid(x)), each."""
    return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")


def focal(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy times (1 - probability of the truth)^2, each."""
    loss = cross_entropy(scores, labels)
    return loss * (1 - torch.exp(-loss)) ** _GAMMA


def mean_loss(scores: Tensor, labels: Tensor, counted: Tensor, kind: Loss = "cross-entropy") -> Tensor:
    """The mean over the scores that are counted."""
    each = focal(scores, labels) if kind == "focal" else cross_entropy(scores, labels)
    return (each * counted).sum() / counted.sum().clamp(min=1)
