"""Branch and bound on the TRW-S bound: exact, or stopped at a limit and honest about it."""

import heapq
import itertools

import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options, Solved, joined, one, proven_gap
from pairloc.inference.trws import Sweeps

_ROOT_PASSES = 200
_BRANCH_PASSES = 10


def exact(batch: Batch, options: Options) -> Solved:
    """Split a node's labels, bound each part by TRW-S, drop what cannot win; at most `iterations` splits a problem."""
    return joined([_exact(problem, options) for problem in batch.one_by_one()])


def _exact(batch: Batch, options: Options) -> Solved:
    """One problem, in double precision."""
    counter = itertools.count()
    root = Sweeps(batch)
    bound, _, _, labels, energy = _bounded(root, _ROOT_PASSES, torch.inf, options.tolerance)
    base = bound
    _, beliefs = root.iterate()
    root_knows = torch.tensor([base], dtype=torch.float64), beliefs
    history = [(bound, energy)]
    # open branches by their bound: unary potentials in which what is ruled out is infinite, messages, what they prove
    heap = [(bound, next(counter), batch.unary, root.into_higher, root.into_lower, base, beliefs)]
    for _ in range(options.iterations):
        if not heap or heap[0][0] >= energy - options.tolerance * max(1.0, abs(energy)):
            break
        bound, _, unary, into_higher, into_lower, base, beliefs = heapq.heappop(heap)
        for part in _split(unary, beliefs, base, energy):
            branch = Sweeps(Batch(part, batch.edges, batch.pairwise), like=root)
            branch.into_higher, branch.into_lower = into_higher.clone(), into_lower.clone()
            proved, base, beliefs, found, found_energy = _bounded(branch, _BRANCH_PASSES, energy, options.tolerance)
            if found_energy < energy:
                labels, energy = found, found_energy
            if proved < energy and int(torch.isfinite(part).sum()) > batch.nodes:  # else it is one labelling, and known
                entry = (max(proved, bound), next(counter), part, branch.into_higher, branch.into_lower, base, beliefs)
                heapq.heappush(heap, entry)
        history.append((min(heap[0][0], energy) if heap else energy, energy))
    lower_bound = min(heap[0][0], energy) if heap else energy
    return one(labels, energy, lower_bound, history, proven_gap(*root_knows, labels, torch.tensor([energy])))


def _bounded(
    sweeps: Sweeps, passes: int, ceiling: float, tolerance: float
) -> tuple[float, float, Tensor, Tensor, float]:
    """Pass messages until the bound meets the energy or the ceiling, or stands still.

    Gives the bound, the bound that goes with the beliefs (that before the last pass), the beliefs, labels and energy.
    """
    bound, before, energy = -torch.inf, -torch.inf, torch.inf
    beliefs, labels = sweeps.batch.unary, sweeps.decode()
    for _ in range(passes):
        sweeps.forward()
        gain, beliefs = sweeps.backward()
        found = sweeps.decode()
        found_energy = float(sweeps.batch.energy(found))
        if found_energy < energy:
            labels, energy = found, found_energy
        before, bound = bound, max(bound, float(gain))
        if bound >= min(ceiling, energy) - tolerance or bound - before <= 1e-3 * tolerance:
            break
    return bound, before, beliefs, labels, energy


def _split(unary: Tensor, beliefs: Tensor, bound: float, energy: float) -> list[Tensor]:
    """Two parts of the labels of the least certain node: its best label, and the others that can still win.

    A label of belief b costs at least the bound and b, so labels beyond the best energy known are out.
    """
    alive = torch.isfinite(unary) & (bound + beliefs < energy)  # (1, N, B)
    kept = torch.where(alive, unary, torch.inf)
    choices = alive.sum(dim=2)[0]
    if int(choices.min()) == 0:
        return []
    second = torch.where(alive, beliefs, torch.inf).kthvalue(min(2, unary.shape[2]), dim=2).values[0]  # (N,)
    node = int(torch.where(choices > 1, second, torch.inf).argmin())
    if int(choices[node]) == 1:
        return [kept]
    best = int(torch.where(alive[0, node], beliefs[0, node], torch.inf).argmin())
    only, others = kept.clone(), kept.clone()
    only[0, node] = torch.inf
    only[0, node, best] = unary[0, node, best]
    others[0, node, best] = torch.inf
    return [only, others]
