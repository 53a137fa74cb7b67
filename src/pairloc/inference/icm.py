"""Iterated conditional modes over single nodes or over edges; the energy never rises."""

import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options, Solved, without_bound
from pairloc.inference.starts import unary_labels


def icm(batch: Batch, options: Options) -> Solved:
    """Sweep over the nodes, giving each its best label given the others, until a sweep changes nothing."""
    labels, energies = _start(batch, options), []
    for _ in range(options.iterations):
        before = labels.clone()
        for node in range(batch.nodes):
            cost = batch.conditional(labels, node)  # (P, B)
            labels[:, node] = cheapest_label(cost, labels[:, node])
        energies.append(batch.energy(labels))
        if torch.equal(labels, before):
            break
    return without_bound(batch, labels, energies, len(energies))


def block_icm(batch: Batch, options: Options) -> Solved:
    """Sweep over the edges, giving both ends the best pair of labels, then over the nodes as `icm` does."""
    labels, energies = _start(batch, options), []
    width = batch.unary.shape[2]
    for _ in range(options.iterations):
        before = labels.clone()
        for e, (i, j) in enumerate(batch.edges):
            cost_i = batch.conditional(labels, i, without=j)  # (P, B)
            cost_j = batch.conditional(labels, j, without=i)
            joint = cost_i[:, :, None] + cost_j[:, None, :] + batch.pairwise[:, e]  # (P, B, B)
            chosen = cheapest_label(joint.flatten(1), labels[:, i] * width + labels[:, j])
            labels[:, i], labels[:, j] = chosen // width, chosen % width
        for node in range(batch.nodes):
            labels[:, node] = cheapest_label(batch.conditional(labels, node), labels[:, node])
        energies.append(batch.energy(labels))
        if torch.equal(labels, before):
            break
    return without_bound(batch, labels, energies, len(energies))


def cheapest_label(cost: Tensor, current: Tensor) -> Tensor:
    """The cheapest label by cost (P, B), or the current one (P,) where no other is cheaper."""
    lowest, label = cost.min(dim=1)
    current_cost = cost.gather(1, current[:, None])[:, 0]
    return torch.where(lowest < current_cost, label, current)


def _start(batch: Batch, options: Options) -> Tensor:
    return unary_labels(batch) if options.start is None else options.start.clone()
