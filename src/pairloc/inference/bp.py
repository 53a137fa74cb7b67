"""Damped loopy belief propagation (min-sum): all edges send their messages in both directions simultaneously."""

import torch

from pairloc.inference.batch import Batch, Options, Solved, without_bound

_DAMPING = 0.5


def bp(batch: Batch, options: Options) -> Solved:
    """Pass messages until they converge; of the labels of lowest belief, keep those with the lowest energy."""
    p, _, b = batch.unary.shape
    lower = torch.tensor([i for i, _ in batch.edges], dtype=torch.long, device=batch.unary.device)
    higher = torch.tensor([j for _, j in batch.edges], dtype=torch.long, device=batch.unary.device)
    to_higher = batch.unary.new_zeros(p, len(batch.edges), b)
    to_lower = torch.zeros_like(to_higher)
    labels = batch.unary.argmin(dim=2)
    energy, energies = batch.energy(labels), []
    for _ in range(options.iterations):
        belief = batch.unary.index_add(1, higher, to_higher).index_add(1, lower, to_lower)  # (P, N, B)
        from_lower = belief[:, lower] - to_lower  # (P, E, B) belief of i without the message from j
        from_higher = belief[:, higher] - to_higher
        new_higher, new_lower = torch.empty_like(to_higher), torch.empty_like(to_lower)
        for e in range(len(batch.edges)):
            new_higher[:, e] = (batch.pairwise[:, e] + from_lower[:, e, :, None]).amin(dim=1)
            new_lower[:, e] = (batch.pairwise[:, e] + from_higher[:, e, None, :]).amin(dim=2)
        largest_step = 0.0
        for messages, new in ((to_higher, new_higher), (to_lower, new_lower)):
            step = (1 - _DAMPING) * (new - new.amin(dim=2, keepdim=True) - messages)
            messages.add_(step)
            largest_step = max(largest_step, float(step.abs().max()) if step.numel() else 0.0)
        decoded = batch.unary.index_add(1, higher, to_higher).index_add(1, lower, to_lower).argmin(dim=2)
        decoded_energy = batch.energy(decoded)
        labels = torch.where((decoded_energy < energy)[:, None], decoded, labels)
        energy = torch.minimum(decoded_energy, energy)
        energies.append(energy)
        if largest_step <= 1e-3 * options.tolerance:
            break
    return without_bound(batch, labels, energies, len(energies))
