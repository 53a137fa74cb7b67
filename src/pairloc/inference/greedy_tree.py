"""The released program's initialisation: solve pairs of nodes, join pairs to fours, fours to eights, and so on."""

import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options, Solved, without_bound

_KEPT = 100  # candidate labellings a group brings to the next level


def greedy_tree(batch: Batch, options: Options) -> Solved:
    """Every group keeps its best candidate labellings; joining two groups weighs all pairs of their candidates."""
    edges = {edge: e for e, edge in enumerate(batch.edges)}
    groups = [[node] for node in range(batch.nodes)]
    found = []
    for node in range(batch.nodes):
        cost, label = batch.unary[:, node].sort(dim=1)
        found.append((label[:, :_KEPT, None], cost[:, :_KEPT]))  # labels (P, T, nodes of the group), cost (P, T)
    while len(groups) > 1:
        pairs = [(a, a + 1) for a in range(0, len(groups) - 1, 2)]
        joined = [_join(batch, edges, groups[a], groups[b], found[a], found[b]) for a, b in pairs]
        rest = slice(2 * len(pairs), None)
        groups, found = [groups[a] + groups[b] for a, b in pairs] + groups[rest], joined + found[rest]
    labels = batch.unary.new_zeros(len(batch), batch.nodes, dtype=torch.long)
    if groups:
        labels[:, groups[0]] = found[0][0][:, 0]
    return without_bound(batch, labels, [], 1)


def _join(
    batch: Batch,
    edges: dict[tuple[int, int], int],
    left: list[int],
    right: list[int],
    found_left: tuple[Tensor, Tensor],
    found_right: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """The best candidates of two groups together."""
    (labels_left, cost_left), (labels_right, cost_right) = found_left, found_right
    joint = cost_left[:, :, None] + cost_right[:, None, :]  # (P, T, T')
    rows = torch.arange(len(batch), device=joint.device)[:, None, None]
    for a, i in enumerate(left):
        for b, j in enumerate(right):
            first, second = labels_left[:, :, None, a], labels_right[:, None, :, b]
            if (i, j) in edges:
                joint = joint + batch.pairwise[rows, edges[i, j], first, second]
            elif (j, i) in edges:
                joint = joint + batch.pairwise[rows, edges[j, i], second, first]
    width = joint.shape[2]
    cost, place = joint.flatten(1).topk(min(_KEPT, joint.shape[1] * width), dim=1, largest=False)
    chosen_left = labels_left.gather(1, (place // width)[..., None].expand(-1, -1, len(left)))
    chosen_right = labels_right.gather(1, (place % width)[..., None].expand(-1, -1, len(right)))
    return torch.cat([chosen_left, chosen_right], dim=2), cost
