"""Mean field: every node has a distribution over its labels, updated from its neighbours' expected potentials."""

import torch

from pairloc.inference.batch import Batch, Options, Solved, without_bound

_FINAL_TEMPERATURE = 1e-3  # final temperature as a fraction of the initial one


def mean_field(batch: Batch, options: Options) -> Solved:
    """Update the nodes in turn while the temperature falls; of the most likely labels, keep those of lowest energy."""
    valid = ~torch.isinf(batch.unary)
    q = valid / valid.sum(dim=2, keepdim=True)
    q = q.to(batch.unary.dtype)  # (P, N, B)
    largest = batch.unary.masked_fill(~valid, 0).abs().amax(dim=(1, 2))  # (P,)
    for e in range(len(batch.edges)):
        largest = torch.maximum(largest, batch.pairwise[:, e].abs().amax(dim=(1, 2)))
    initial_temperature = (largest + 1e-6)[:, None]  # (P, 1)
    labels = batch.unary.argmin(dim=2)
    energy, energies = batch.energy(labels), []
    for iteration in range(options.iterations):
        temperature = initial_temperature * _FINAL_TEMPERATURE ** (iteration / max(options.iterations - 1, 1))
        for node in range(batch.nodes):
            field = batch.unary[:, node]
            for e, j in batch.above[node]:
                field = field + torch.einsum("pab,pb->pa", batch.pairwise[:, e], q[:, j])
            for e, i in batch.below[node]:
                field = field + torch.einsum("pab,pa->pb", batch.pairwise[:, e], q[:, i])
            q[:, node] = torch.softmax(-field / temperature, dim=1)
        decoded = q.argmax(dim=2)
        decoded_energy = batch.energy(decoded)
        labels = torch.where((decoded_energy < energy)[:, None], decoded, labels)
        energy = torch.minimum(decoded_energy, energy)
        energies.append(energy)
    return without_bound(batch, labels, energies, len(energies))
