"""Branch and bound with the TRW-S bound: exact, or stopped at a limit with a valid lower bound."""

import heapq
import itertools

import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options, Solved, joined, proven_gap, single_solved
from pairloc.inference.trws import Sweeps

_ROOT_PASSES = 200
_BRANCH_PASSES = 10


def exact(batch: Batch, options: Options) -> Solved:
    """Split a node's labels, bound each part by TRW-S and drop parts that cannot win.

    Makes at most `iterations` splits per problem.
    """
    return joined([_exact(problem, options) for problem in batch.one_by_one()])


def _exact(batch: Batch, options: Options) -> Solved:
    """Solve one problem, in double precision."""
    counter = itertools.count()
    root = Sweeps(batch)
    bound, _, _, labels, energy = _bounded(root, _ROOT_PASSES, torch.inf, options.tolerance)
    base = bound
    _, beliefs = root.iterate()
    root_base, root_beliefs = torch.tensor([base], dtype=torch.float64), beliefs
    history = [(bound, energy)]
    # Open branches by bound: unary potentials (infinite for excluded labels), messages, and their base and beliefs.
    heap = [(bound, next(counter), batch.unary, root.into_higher, root.into_lower, base, beliefs)]
    for _ in range(options.iterations):
        if not heap or heap[0][0] >= energy - options.tolerance * max(1.0, abs(energy)):
            break
        bound, _, unary, into_higher, into_lower, base, beliefs = heapq.heappop(heap)
        for part in _split(unary, beliefs, base, energy):
            branch = Sweeps(Batch(part, batch.edges, batch.pairwise), like=root)
            branch.into_higher, branch.into_lower = into_higher.clone(), into_lower.clone()
            part_bound, base, beliefs, decoded, decoded_energy = _bounded(
                branch, _BRANCH_PASSES, energy, options.tolerance
            )
            if decoded_energy < energy:
                labels, energy = decoded, decoded_energy
            # A part with one labelling left is not searched further: that labelling was just decoded.
            if part_bound < energy and int(torch.isfinite(part).sum()) > batch.nodes:
                part_bound = max(part_bound, bound)
                entry = (part_bound, next(counter), part, branch.into_higher, branch.into_lower, base, beliefs)
                heapq.heappush(heap, entry)
        history.append((min(heap[0][0], energy) if heap else energy, energy))
    lower_bound = min(heap[0][0], energy) if heap else energy
    gaps = proven_gap(root_base, root_beliefs, labels, torch.tensor([energy]))
    return single_solved(labels, energy, lower_bound, history, gaps)


def _bounded(
    sweeps: Sweeps, passes: int, ceiling: float, tolerance: float
) -> tuple[float, float, Tensor, Tensor, float]:
    """Pass messages until the bound reaches the energy or the ceiling, or stops improving.

    Returns the bound, the base of the beliefs (the bound before the last pass), the beliefs, the labels and their
    energy.
    """
    bound, before, energy = -torch.inf, -torch.inf, torch.inf
    beliefs, labels = sweeps.batch.unary, sweeps.decode()
    for _ in range(passes):
        sweeps.forward()
        pass_bound, beliefs = sweeps.backward()
        decoded = sweeps.decode()
        decoded_energy = float(sweeps.batch.energy(decoded))
        if decoded_energy < energy:
            labels, energy = decoded, decoded_energy
        before, bound = bound, max(bound, float(pass_bound))
        if bound >= min(ceiling, energy) - tolerance or bound - before <= 1e-3 * tolerance:
            break
    return bound, before, beliefs, labels, energy


def _split(unary: Tensor, beliefs: Tensor, bound: float, energy: float) -> list[Tensor]:
    """Split the labels of the least certain node into its best label and the others that can still win.

    A labelling that uses a label of belief b has at least energy bound + b, so labels above the best energy are
    excluded.
    """
    alive = torch.isfinite(unary) & (bound + beliefs < energy)  # (1, N, B)
    kept = torch.where(alive, unary, torch.inf)
    choices = alive.sum(dim=2)[0]  # (N,)
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
