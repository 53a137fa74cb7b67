"""Starting points: labellings that look at no pairwise potential."""

import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options, Solved, without_bound


def unary(batch: Batch, options: Options) -> Solved:
    """Every node's cheapest label by itself."""
    return without_bound(batch, unary_labels(batch), [], 0)


def random(batch: Batch, options: Options) -> Solved:
    """A label drawn evenly for every node."""
    draws = torch.rand(batch.unary.shape, generator=options.generator).to(batch.unary.device)
    labels = draws.masked_fill(torch.isinf(batch.unary), -1).argmax(dim=2)
    return without_bound(batch, labels, [], 0)


def unary_labels(batch: Batch) -> Tensor:
    """(P, N) labels of least unary potential."""
    return batch.unary.argmin(dim=2)
