"""TRW-S: sequential tree-reweighted message passing (Kolmogorov 2006), with its lower bound.

Messages reparametrise the energy. With beliefs b_s = unary_s + sum of the messages into s, for every labelling x
    E(x) = sum_s b_s(x_s) + sum_(s,t) [pairwise_st - M_ts(x_s) - M_st(x_t)].
A pass visits the nodes in order. At node s it subtracts the minimum of the belief and adds it to the bound. It then
gives every edge to a later node the fraction gamma_s b_s and sends along it the message
    M_st(x_t) = min over x_s of gamma_s b_s(x_s) - M_ts(x_s) + pairwise_st(x_s, x_t),
minus its minimum, which is added to the bound too. All remaining terms are nonnegative, so the sum of a pass is a lower
bound on the energy. It never falls.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pairloc.inference.batch import Batch, Options, Solved, joined, proven_gap
from pairloc.inference.icm import icm

_CACHE = 64 << 20  # bytes of potentials per chunk on a CPU; larger chunks lose more to memory access than they save
_DOUBLE = 1 << 25  # potentials per chunk in double precision
_DECODE_EVERY = 5


def trws(batch: Batch, options: Options) -> Solved:
    """Pass messages until bound and energy agree within the tolerance, the bound stalls, or iterations run out."""
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
class _NodeEdges:
    """The edges along which a node sends messages in one direction (`down` or `up`)."""

    rows: slice  # their indices in the order of this direction
    opposite: list[int]  # their indices in the order of the opposite direction
    opposite_tensor: Tensor  # `opposite` on the device


class Sweeps:
    """The messages of a batch and the passes over its nodes. `down` edges lead to higher nodes, `up` edges to lower.

    Each direction has its own order of the edges and a copy of the potentials in which the edges of a node are
    contiguous and the label to minimise over is the last dimension.
    """

    def __init__(self, batch: Batch, like: "Sweeps | None" = None) -> None:
        """Start with zero messages; `like` shares the tables of sweeps over the same pairwise potentials."""
        self.batch = batch
        down, up = list(batch.edges), sorted(batch.edges, key=lambda edge: edge[::-1])
        down_index, up_index = ({edge: index for index, edge in enumerate(order)} for order in (down, up))
        self._prepare_tables([down_index[edge] for edge in up], like)
        shape = (len(batch), len(down), batch.unary.shape[2])
        self.into_higher = batch.unary.new_zeros(shape)  # messages along down edges, in the order of `up`
        self.into_lower = batch.unary.new_zeros(shape)  # messages along up edges, in the order of `down`
        device = batch.unary.device
        self.down = _node_edges(down, up_index, [len(edges) for edges in batch.above], device)
        self.up = _node_edges(up, down_index, [len(edges) for edges in batch.below], device)

    def _prepare_tables(self, up: list[int], like: "Sweeps | None") -> None:
        """Lay out the potentials for `_messages`; `up` lists the edges ordered by their higher node."""
        self.up_tables: Tensor = self.batch.pairwise[:, up] if like is None else like.up_tables  # (P, E, B i, B j)
        self._like = like
        p, _, b = self.batch.unary.shape
        max_degree = max((len(edges) for edges in (*self.batch.above, *self.batch.below)), default=0)
        self._scratch = self.batch.unary.new_empty(p * max_degree * b * b)

    @cached_property
    def down_tables(self) -> Tensor:
        """Potentials for messages to higher nodes: (P, E, B of j, B of i)."""
        return self.batch.pairwise.transpose(2, 3).contiguous() if self._like is None else self._like.down_tables

    def belief(self, node: int) -> Tensor:
        """Unary potentials of a node plus all messages into it: (P, B)."""
        from_lower = self.into_higher[:, self.up[node].rows].sum(dim=1)
        from_higher = self.into_lower[:, self.down[node].rows].sum(dim=1)
        return self.batch.unary[:, node] + (from_lower + from_higher)

    def iterate(self) -> tuple[Tensor, Tensor]:
        """One forward and one backward pass; returns what `backward` returns."""
        self.forward()
        return self.backward()

    def forward(self) -> None:
        """Send messages to higher nodes, lowest node first."""
        for node in range(self.batch.nodes):
            self._send(node, down=True)

    def backward(self) -> tuple[Tensor, Tensor]:
        """Send messages to lower nodes, highest node first.

        Returns the lower bound (P,) and the beliefs (P, N, B) at the time each node sent, shifted to minimum 0.
        """
        bound = torch.zeros(len(self.batch), dtype=torch.float64, device=self.batch.unary.device)
        beliefs = torch.empty_like(self.batch.unary)
        for node in reversed(range(self.batch.nodes)):
            gain, belief = self._send(node, down=False)
            bound += gain
            beliefs[:, node] = belief
        return bound, beliefs

    def _send(self, node: int, *, down: bool) -> tuple[Tensor, Tensor]:
        """Send a node's messages in one direction.

        Returns the gain of the bound (P,) and the belief minus its minimum (P, B).
        """
        edges = (self.down if down else self.up)[node]
        sent, received = (self.into_higher, self.into_lower) if down else (self.into_lower, self.into_higher)
        belief = self.belief(node)
        minimum = belief.amin(dim=1, keepdim=True)
        belief = belief - minimum
        gain = minimum[:, 0].double()
        if edges.opposite:
            outgoing = self.gamma(node) * belief[:, None] - received[:, edges.rows]  # (P, edges, B)
            message = self._messages(outgoing, edges, down=down)  # (P, edges, B of receiver)
            lowest = message.amin(dim=2, keepdim=True)
            sent.index_copy_(1, edges.opposite_tensor, message - lowest)
            gain = gain + lowest.double().sum(dim=(1, 2))
        return gain, belief

    def _messages(self, outgoing: Tensor, edges: _NodeEdges, *, down: bool) -> Tensor:
        """Minimum over the sender's labels of outgoing + potentials: (P, edges, B) -> (P, edges, B of receiver)."""
        table = (self.down_tables if down else self.up_tables)[:, edges.rows]  # (P, edges, B of receiver, B of sender)
        costs = self._scratch[: table.numel()].view(table.shape)
        return torch.add(table, outgoing[:, :, None], out=costs).amin(dim=3)

    def gamma(self, node: int) -> float:
        """The fraction of its belief that a node gives to each edge."""
        return 1.0 / max(len(self.down[node].opposite), len(self.up[node].opposite), 1)

    def exact_bound(self) -> Tensor:
        """The bound that these messages prove, computed in double precision: (P,)."""
        bounds = []
        step = max(1, _DOUBLE // max(self.batch.pairwise[0].numel(), 1))
        for rows in (slice(first, first + step) for first in range(0, len(self.batch), step)):
            double = Sweeps(self.batch.part(rows).double())
            double.into_higher, double.into_lower = self.into_higher[rows].double(), self.into_lower[rows].double()
            bounds.append(double.backward()[0])
        return torch.cat(bounds)

    def reparametrised(self) -> tuple[Tensor, Tensor]:
        """Beliefs (P, N, B) and pairwise tables minus messages (P, E, B, B), which give the same energies."""
        beliefs = torch.stack([self.belief(node) for node in range(self.batch.nodes)], dim=1)
        into_higher = torch.empty_like(self.into_higher)  # in the order of the edges
        for edges in self.up:
            into_higher[:, edges.opposite] = self.into_higher[:, edges.rows]
        return beliefs, self.batch.pairwise - self.into_lower[..., None] - into_higher[:, :, None, :]

    def decode(self) -> Tensor:
        """Label the nodes in order, each given the labels before it and the messages from nodes after it: (P, N)."""
        labels = torch.zeros(len(self.batch), self.batch.nodes, dtype=torch.long, device=self.batch.unary.device)
        rows = torch.arange(len(self.batch), device=labels.device)[:, None]
        for node in range(self.batch.nodes):
            cost = self.batch.unary[:, node] + self.into_lower[:, self.down[node].rows].sum(dim=1)
            if self.up[node].opposite:
                edges = self.up[node].opposite
                lower = labels[:, [self.batch.edges[e][0] for e in edges]]
                cost = cost + self.batch.pairwise[rows, edges, lower].sum(dim=1)
            labels[:, node] = cost.argmin(dim=1)
        return labels


def _node_edges(
    order: list[tuple[int, int]], opposite_index: dict[tuple[int, int], int], counts: list[int], device: torch.device
) -> list[_NodeEdges]:
    """The edges of every node in one direction: `counts` contiguous edges of `order` per node."""
    nodes, first = [], 0
    for count in counts:
        opposite = [opposite_index[edge] for edge in order[first : first + count]]
        opposite_tensor = torch.tensor(opposite, dtype=torch.long, device=device)
        nodes.append(_NodeEdges(slice(first, first + count), opposite, opposite_tensor))
        first += count
    return nodes


def _run(batch: Batch, options: Options, sweeps: Sweeps) -> Solved:
    """The main loop: forward and backward passes, decoding every few iterations; ICM improves the best labels."""
    labels = sweeps.decode()
    energy = batch.energy(labels)
    bound = torch.full_like(energy, -torch.inf)
    history = []
    for iteration in range(1, options.iterations + 1):
        new_bound, _ = sweeps.iterate()
        stalled = bool((new_bound - bound <= 1e-3 * options.tolerance).all())
        bound = torch.maximum(bound, new_bound)
        stop = stalled or iteration == options.iterations
        if iteration % _DECODE_EVERY == 0 or stop:
            decoded = sweeps.decode()
            decoded_energy = batch.energy(decoded)
            labels = torch.where((decoded_energy < energy)[:, None], decoded, labels)
            energy = torch.minimum(decoded_energy, energy)
            stop = stop or bool((energy - bound <= options.tolerance * energy.abs().clamp(min=1)).all())
        history.append(torch.stack([bound, energy], dim=-1))
        if stop:
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
