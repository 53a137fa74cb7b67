"""A*: label the nodes one after another, most promising partial labelling first."""

import heapq
import itertools

import numpy as np
import numpy.typing as npt
import torch

from pairloc.inference.batch import Batch, Options, Solved, joined, one, proven_gap
from pairloc.inference.trws import Sweeps

Floats = npt.NDArray[np.float64]
_PASSES = 50


def a_star(batch: Batch, options: Options) -> Solved:
    """Search with at most `iterations` expansions a problem; exact where the search ends before."""
    return joined([_a_star(problem, options) for problem in batch.one_by_one()])


def _a_star(batch: Batch, options: Options) -> Solved:
    """One problem, on TRW-S's reparametrisation of it.

    In that, the sum of every node's least belief and every edge's least entry is already near the minimum, so the
    estimate of what is still to come (best label of each unlabelled node, best entry of each edge ahead) is tight.
    """
    sweeps = Sweeps(batch)
    for _ in range(_PASSES):
        base, _ = sweeps.iterate()
    _, beliefs = sweeps.iterate()
    labels = sweeps.decode()
    energy = float(batch.energy(labels))
    final_beliefs, tables = sweeps.reparametrised()
    ahead = _Ahead(final_beliefs[0].cpu().numpy(), tables[0].cpu().numpy(), batch.edges)
    counter = itertools.count()
    heap: list[tuple[float, int, float, tuple[int, ...]]] = [(-np.inf, next(counter), 0.0, ())]
    history = []
    bound = min(float(base), energy)
    for _ in range(options.iterations):
        estimate, _, cost, partial = heap[0]
        bound = max(bound, min(estimate, energy))
        history.append((bound, energy))
        if estimate >= energy - options.tolerance * max(1.0, abs(energy)):
            bound = energy if estimate >= energy else bound
            break
        heapq.heappop(heap)
        if len(partial) == batch.nodes:
            labels, energy = torch.tensor([partial]), float(batch.energy(torch.tensor([partial])))
            bound = energy
            break
        costs, estimates = ahead.extend(partial, cost)
        for label in np.flatnonzero(estimates < energy).tolist():
            heapq.heappush(heap, (float(estimates[label]), next(counter), float(costs[label]), (*partial, label)))
        if not heap:
            bound = energy
            break
    history.append((bound, energy))
    return one(labels, energy, bound, history, proven_gap(base, beliefs, labels, torch.tensor([energy])))


class _Ahead:
    """What labels cost so far, and at least what is still to come."""

    def __init__(self, beliefs: Floats, tables: Floats, edges: tuple[tuple[int, int], ...]) -> None:
        self.beliefs = beliefs  # (N, B)
        self.tables = {edge: tables[e] for e, edge in enumerate(edges)}
        self.rest = beliefs.copy()  # (N, B) with the least entry of every edge to a higher node
        finite = np.isfinite(beliefs)
        for (i, j), table in self.tables.items():
            self.rest[i] += np.where(finite[j], table, np.inf).min(axis=1)

    def extend(self, partial: tuple[int, ...], cost: float) -> tuple[Floats, Floats]:
        """For every label of the next node the cost (B,) with it, and the least total (B,) it can lead to."""
        node = len(partial)
        costs = cost + self._given(self.beliefs, partial, node)  # (B,)
        estimates = costs.copy()
        for later in range(node + 1, len(self.beliefs)):
            outlook = self._given(self.rest, partial, later)[None]  # (1, B of later)
            if (node, later) in self.tables:
                outlook = outlook + self.tables[node, later]  # (B, B of later)
            estimates = estimates + outlook.min(axis=1)
        return costs, estimates

    def _given(self, potentials: Floats, partial: tuple[int, ...], node: int) -> Floats:
        """A node's potentials (B,) with its edges to the labelled nodes."""
        total: Floats = potentials[node].copy()
        for i, label in enumerate(partial):
            if (i, node) in self.tables:
                total += self.tables[i, node][label]
        return total
