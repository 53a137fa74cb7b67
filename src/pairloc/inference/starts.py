"""Trivial solvers that ignore the pairwise potentials, used as starting points."""

import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options, Solved, without_bound


def unary(batch: Batch, options: Options) -> Solved:
    """Give every node the label with the lowest unary potential."""
    return without_bound(batch, unary_labels(batch), [], 0)


def random(batch: Batch, options: Options) -> Solved:
    """Draw the label of every node uniformly."""
    draws = torch.rand(batch.unary.shape, generator=options.generator).to(batch.unary.device)
    labels = draws.masked_fill(torch.isinf(batch.unary), -1).argmax(dim=2)
    return without_bound(batch, labels, [], 0)


def unary_labels(batch: Batch) -> Tensor:
    """Labels with the lowest unary potential: (P, N)."""
    return batch.unary.argmin(dim=2)
