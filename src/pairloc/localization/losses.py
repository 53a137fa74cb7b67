"""The loss of a score x with label y: sigmoid cross-entropy (paper, eq. loss).

It is linear in y, l(x, y) = l(x, 0) - y x, which makes re-localization a graph labelling problem.
"""

from torch import Tensor, nn


def cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    """Return -(1 - y) log(1 - sigmoid(x)) - y log(sigmoid(x)), elementwise."""
    return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="none")


def mean_loss(scores: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """Return the mean loss over the scores where the mask `counted` is set; all three have one shape."""
    return (cross_entropy(scores, labels) * counted).sum() / counted.sum().clamp(min=1)
