"""Mean field: every node keeps a distribution over its labels and answers to the others' expected potentials."""

import torch

from pairloc.inference.batch import Batch, Options, Solved, without_bound

_COOLEST = 1e-3  # of the first temperature


def mean_field(batch: Batch, options: Options) -> Solved:
    """Update the nodes in turn while the temperature falls; likeliest labels of the lowest energy met are kept."""
    valid = ~torch.isinf(batch.unary)
    q = valid / valid.sum(dim=2, keepdim=True)
    q = q.to(batch.unary.dtype)  # (P, N, B)
    spread = batch.pairwise.std() if batch.pairwise.numel() > 1 else torch.tensor(0.0)
    hottest = float(spread) * max(len(batch.edges), 1) ** 0.5 + float(batch.unary[valid].abs().max()) + 1e-6
    above = [[(e, j) for e, (i, j) in enumerate(batch.edges) if i == node] for node in range(batch.nodes)]
    below = [[(e, i) for e, (i, j) in enumerate(batch.edges) if j == node] for node in range(batch.nodes)]
    labels = batch.unary.argmin(dim=2)
    energy, energies = batch.energy(labels), []
    for iteration in range(options.iterations):
        temperature = hottest * _COOLEST ** (iteration / max(options.iterations - 1, 1))
        for node in range(batch.nodes):
            field = batch.unary[:, node]
            for e, j in above[node]:
                field = field + torch.einsum("pab,pb->pa", batch.pairwise[:, e], q[:, j])
            for e, i in below[node]:
                field = field + torch.einsum("pab,pa->pb", batch.pairwise[:, e], q[:, i])
            q[:, node] = torch.softmax(-field / temperature, dim=1)
        found = q.argmax(dim=2)
        found_energy = batch.energy(found)
        labels = torch.where((found_energy < energy)[:, None], found, labels)
        energy = torch.minimum(found_energy, energy)
        energies.append(energy)
    return without_bound(batch, labels, energies, len(energies))
