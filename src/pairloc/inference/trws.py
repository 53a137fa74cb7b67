"""TRW-S: sequential tree-reweighted message passing (Kolmogorov 2006), with its lower bound.

Messages reparametrise the energy. With beliefs b_s = unary_s + sum of the messages into s, for every labelling x
    E(x) = sum_s b_s(x_s) + sum_(s,t) [pairwise_st - M_ts(x_s) - M_st(x_t)].
A pass takes the nodes in order; at node s it takes the least belief out as a gain of the bound, hands every edge ahead
an equal share gamma_s b_s, and sends M_st(x_t) = min over x_s of gamma_s b_s(x_s) - M_ts(x_s) + pairwise_st(x_s, x_t),
less its least value, which is a gain too. All that remains is nowhere negative, so the gains of a pass are a bound; it
never falls.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options, Solved, joined, proven_gap
from pairloc.inference.icm import icm

_CACHE = 64 << 20  # bytes of potentials worked on at a time on a CPU: beyond, memory is slower than the overhead
_DOUBLE = 1 << 25  # potentials held in double precision at a time
_DECODE_EVERY = 5


def trws(batch: Batch, options: Options) -> Solved:
    """Pass messages until bound and energy meet within the tolerance, the bound stands still, or iterations end."""
    if batch.unary.is_cuda and batch.edges:
        from pairloc.inference.trws_triton import TritonSweeps

        with torch.cuda.device(batch.unary.device):
            return _run(batch, options, TritonSweeps(batch))
    if not batch.edges:
        return _run(batch, options, Sweeps(batch))
    size = batch.pairwise[0].numel() * batch.pairwise.element_size() * 2
    step = max(1, _CACHE // max(size, 1))
    parts = [batch.part(slice(start, start + step)) for start in range(0, len(batch), step)]
    return joined([_run(part, options, Sweeps(part)) for part in parts])


@dataclass(frozen=True)
class _Side:
    """The edges by which a node passes messages one way: places in the tables of that way, and of the other."""

    own: slice
    other: list[int]
    index: Tensor  # `other` on the device


class Sweeps:
    """The messages of a batch, and the passes over its nodes. `down` edges lead to higher nodes, `up` edges back.

    Both ways have a copy of the potentials in which a node's edges lie side by side and the label to minimise over
    comes last.
    """

    def __init__(self, batch: Batch, like: "Sweeps | None" = None) -> None:
        """`like` lends the tables of sweeps over the same pairwise potentials."""
        self.batch = batch
        down, up = list(batch.edges), sorted(batch.edges, key=lambda edge: edge[::-1])
        place_down, place_up = ({edge: place for place, edge in enumerate(order)} for order in (down, up))
        self._lay_out([place_down[edge] for edge in up], like)
        shape = (len(batch), len(down), batch.unary.shape[2])
        self.into_higher = batch.unary.new_zeros(shape)  # messages along down edges, in the order of `up`
        self.into_lower = batch.unary.new_zeros(shape)  # messages along up edges, in the order of `down`
        device = batch.unary.device
        self.down = _sides(down, place_up, [len(edges) for edges in batch.above], device)
        self.up = _sides(up, place_down, [len(edges) for edges in batch.below], device)

    def _lay_out(self, up: list[int], like: "Sweeps | None") -> None:
        """Put the potentials where `_least` reads them; `up` is the order of the edges by their higher node."""
        self.up_tables: Tensor = self.batch.pairwise[:, up] if like is None else like.up_tables  # (P, E, B i, B j)
        self._like = like
        p, _, b = self.batch.unary.shape
        most = max((len(places) for places in (*self.batch.above, *self.batch.below)), default=0)
        self._scratch = self.batch.unary.new_empty(p * most * b * b)

    @cached_property
    def down_tables(self) -> Tensor:
        """The potentials for messages to higher nodes: (P, E, B of j, B of i)."""
        return self.batch.pairwise.transpose(2, 3).contiguous() if self._like is None else self._like.down_tables

    def belief(self, node: int) -> Tensor:
        """Unary potentials and all messages into a node: (P, B)."""
        messages = self.into_higher[:, self.up[node].own].sum(dim=1) + self.into_lower[:, self.down[node].own].sum(
            dim=1
        )
        return self.batch.unary[:, node] + messages

    def iterate(self) -> tuple[Tensor, Tensor]:
        """A pass to higher nodes and one back; what `backward` gives."""
        self.forward()
        return self.backward()

    def forward(self) -> None:
        """Messages to higher nodes."""
        for node in range(self.batch.nodes):
            self._send(node, down=True)

    def backward(self) -> tuple[Tensor, Tensor]:
        """Messages to lower nodes; the lower bound (P,) and the beliefs (P, N, B) met on the way, least value 0."""
        bound = torch.zeros(len(self.batch), dtype=torch.float64, device=self.batch.unary.device)
        beliefs = torch.empty_like(self.batch.unary)
        for node in reversed(range(self.batch.nodes)):
            gain, belief = self._send(node, down=False)
            bound += gain
            beliefs[:, node] = belief
        return bound, beliefs

    def _send(self, node: int, *, down: bool) -> tuple[Tensor, Tensor]:
        """Send messages along one side of a node; the gain of the bound (P,) and the belief less its least (P, B)."""
        side = (self.down if down else self.up)[node]
        sent, received = (self.into_higher, self.into_lower) if down else (self.into_lower, self.into_higher)
        belief = self.belief(node)
        least = belief.amin(dim=1, keepdim=True)
        belief = belief - least
        gain = least[:, 0].double()
        if side.other:
            share = self.gamma(node) * belief[:, None] - received[:, side.own]  # (P, edges, B)
            message = self._least(share, side, down=down)  # (P, edges, B ahead)
            lowest = message.amin(dim=2, keepdim=True)
            sent.index_copy_(1, side.index, message - lowest)
            gain = gain + lowest.double().sum(dim=(1, 2))
        return gain, belief

    def _least(self, share: Tensor, side: _Side, *, down: bool) -> Tensor:
        """Min over the labels here of share and potentials: (P, edges, B) -> (P, edges, B ahead)."""
        table = (self.down_tables if down else self.up_tables)[:, side.own]  # (P, edges, B ahead, B here)
        costs = self._scratch[: table.numel()].view(table.shape)
        return torch.add(table, share[:, :, None], out=costs).amin(dim=3)

    def gamma(self, node: int) -> float:
        """The share of its belief that a node hands to each edge."""
        return 1.0 / max(len(self.down[node].other), len(self.up[node].other), 1)

    def exact_bound(self) -> Tensor:
        """The bound these messages prove, in double precision -> (P,)."""
        bounds = []
        step = max(1, _DOUBLE // max(self.batch.pairwise[0].numel(), 1))
        for rows in (slice(first, first + step) for first in range(0, len(self.batch), step)):
            double = Sweeps(self.batch.part(rows).double())
            double.into_higher, double.into_lower = self.into_higher[rows].double(), self.into_lower[rows].double()
            bounds.append(double.backward()[0])
        return torch.cat(bounds)

    def reparametrised(self) -> tuple[Tensor, Tensor]:
        """Beliefs (P, N, B) and what the messages leave of the edges (P, E, B, B): the same energies in other words."""
        beliefs = torch.stack([self.belief(node) for node in range(self.batch.nodes)], dim=1)
        into_higher = torch.empty_like(self.into_higher)  # in the order of the edges
        for side in self.up:
            into_higher[:, side.other] = self.into_higher[:, side.own]
        return beliefs, self.batch.pairwise - self.into_lower[..., None] - into_higher[:, :, None, :]

    def decode(self) -> Tensor:
        """Labels in order of the nodes, each best given those before it and the messages from those after: (P, N)."""
        labels = torch.zeros(len(self.batch), self.batch.nodes, dtype=torch.long, device=self.batch.unary.device)
        rows = torch.arange(len(self.batch), device=labels.device)[:, None]
        for node in range(self.batch.nodes):
            cost = self.batch.unary[:, node] + self.into_lower[:, self.down[node].own].sum(dim=1)
            if self.up[node].other:
                edges = self.up[node].other
                lower = labels[:, [self.batch.edges[e][0] for e in edges]]
                cost = cost + self.batch.pairwise[rows, edges, lower].sum(dim=1)
            labels[:, node] = cost.argmin(dim=1)
        return labels


def _sides(
    order: list[tuple[int, int]], places: dict[tuple[int, int], int], counts: list[int], device: torch.device
) -> list[_Side]:
    """For every node its edges one way, which lie side by side in `order`, and their places in the other order."""
    sides, first = [], 0
    for count in counts:
        other = [places[edge] for edge in order[first : first + count]]
        index = torch.tensor(other, dtype=torch.long, device=device)
        sides.append(_Side(slice(first, first + count), other, index))
        first += count
    return sides


def _run(batch: Batch, options: Options, sweeps: Sweeps) -> Solved:
    """The loop: forward, backward, and now and then a look at the labels; the best are polished by ICM."""
    labels = sweeps.decode()
    energy = batch.energy(labels)
    bound = torch.full_like(energy, -torch.inf)
    history = []
    for iteration in range(1, options.iterations + 1):
        new_bound, _ = sweeps.iterate()
        stands_still = bool((new_bound - bound <= 1e-3 * options.tolerance).all())
        bound = torch.maximum(bound, new_bound)
        ends = stands_still or iteration == options.iterations
        if iteration % _DECODE_EVERY == 0 or ends:
            found = sweeps.decode()
            found_energy = batch.energy(found)
            labels = torch.where((found_energy < energy)[:, None], found, labels)
            energy = torch.minimum(found_energy, energy)
            ends = ends or bool((energy - bound <= options.tolerance * energy.abs().clamp(min=1)).all())
        history.append(torch.stack([bound, energy], dim=-1))
        if ends:
            break
    _, beliefs = sweeps.iterate()
    base, bound = bound, sweeps.exact_bound()
    polished = icm(batch, Options(100, options.tolerance, options.generator, labels))
    labels, energy = polished.labels, polished.energy
    return Solved(
        labels,
        energy,
        bound,
        torch.full((len(batch),), len(history)),
        torch.stack(history),
        proven_gap(base, beliefs, labels, energy),
    )
