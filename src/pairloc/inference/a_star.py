"""A* search: label the nodes one after another, extending the most promising partial labelling first."""

import heapq
import itertools

import numpy as np
import numpy.typing as npt
import torch

from pairloc.inference.batch import Batch, Options, Solved, joined, proven_gap, single_solved
from pairloc.inference.trws import Sweeps

Floats = npt.NDArray[np.float64]
_PASSES = 50


def a_star(batch: Batch, options: Options) -> Solved:
    """Search with at most `iterations` expansions per problem; exact if the search ends before the limit."""
    return joined([_a_star(problem, options) for problem in batch.one_by_one()])


def _a_star(batch: Batch, options: Options) -> Solved:
    """Search one problem after reparametrising it with TRW-S.

    In the reparametrised problem, the sum of every node's lowest belief and every edge's lowest entry is close to the
    minimum. So the lower bound on the remaining cost (lowest label of each unlabelled node, lowest entry of each
    remaining edge) is tight.
    """
    sweeps = Sweeps(batch)
    for _ in range(_PASSES):
        base, _ = sweeps.iterate()
    _, beliefs = sweeps.iterate()
    labels = sweeps.decode()
    energy = float(batch.energy(labels))
    final_beliefs, tables = sweeps.reparametrised()
    heuristic = _Heuristic(final_beliefs[0].cpu().numpy(), tables[0].cpu().numpy(), batch.edges)
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
        costs, estimates = heuristic.extend(partial, cost)
        for label in np.flatnonzero(estimates < energy).tolist():
            heapq.heappush(heap, (float(estimates[label]), next(counter), float(costs[label]), (*partial, label)))
        if not heap:
            bound = energy
            break
    history.append((bound, energy))
    return single_solved(labels, energy, bound, history, proven_gap(base, beliefs, labels, torch.tensor([energy])))


class _Heuristic:
    """The cost of a partial labelling, and a lower bound on the energy of its completions."""

    def __init__(self, beliefs: Floats, tables: Floats, edges: tuple[tuple[int, int], ...]) -> None:
        self.beliefs = beliefs  # (N, B)
        self.tables = {edge: tables[e] for e, edge in enumerate(edges)}
        self.remaining = beliefs.copy()  # (N, B) beliefs plus the lowest entry of every edge to a higher node
        finite = np.isfinite(beliefs)
        for (i, j), table in self.tables.items():
            self.remaining[i] += np.where(finite[j], table, np.inf).min(axis=1)

    def extend(self, partial: tuple[int, ...], cost: float) -> tuple[Floats, Floats]:
        """The cost (B,) with each label of the next node, and a lower bound (B,) on the energy it can lead to."""
        node = len(partial)
        costs = cost + self._conditional(self.beliefs, partial, node)  # (B,)
        estimates = costs.copy()
        for later in range(node + 1, len(self.beliefs)):
            later_costs = self._conditional(self.remaining, partial, later)[None]  # (1, B of later)
            if (node, later) in self.tables:
                later_costs = later_costs + self.tables[node, later]  # (B, B of later)
            estimates = estimates + later_costs.min(axis=1)
        return costs, estimates

    def _conditional(self, potentials: Floats, partial: tuple[int, ...], node: int) -> Floats:
        """Potentials (B,) of a node plus those of its edges to the labelled nodes."""
        total: Floats = potentials[node].copy()
        for i, label in enumerate(partial):
            if (i, node) in self.tables:
                total += self.tables[i, node][label]
        return total
