"""Mean field: every node keeps a distribution over its labels and answers to the others' expected potentials."""

import torch

from pairloc.inference.batch import Batch, Options, Solved, without_bound

_COOLEST = 1e-3  # of the first temperature


def mean_field(batch: Batch, options: Options) -> Solved:
    """Update the nodes in turn while the temperature falls; likeliest labels of the lowest energy met are kept."""
    valid = ~torch.isinf(batch.unary)
    q = valid / valid.sum(dim=2, keepdim=True)
    q = q.to(batch.unary.dtype)  # (P, N, B)
    widest = batch.unary.masked_fill(~valid, 0).abs().amax(dim=(1, 2))  # (P,)
    for e in range(len(batch.edges)):
        widest = torch.maximum(widest, batch.pairwise[:, e].abs().amax(dim=(1, 2)))
    hottest = (widest + 1e-6)[:, None]  # (P, 1)
    labels = batch.unary.argmin(dim=2)
    energy, energies = batch.energy(labels), []
    for iteration in range(options.iterations):
        temperature = hottest * _COOLEST ** (iteration / max(options.iterations - 1, 1))
        for node in range(batch.nodes):
            field = batch.unary[:, node]
            for e, j in batch.above[node]:
                field = field + torch.einsum("pab,pb->pa", batch.pairwise[:, e], q[:, j])
            for e, i in batch.below[node]:
                field = field + torch.einsum("pab,pa->pb", batch.pairwise[:, e], q[:, i])
            q[:, node] = torch.softmax(-field / temperature, dim=1)
        found = q.argmax(dim=2)
        found_energy = batch.energy(found)
        labels = torch.where((found_energy < energy)[:, None], found, labels)
        energy = torch.minimum(found_energy, energy)
        energies.append(energy)
    return without_bound(batch, labels, energies, len(energies))
