"""Many problems of one shape as tensors: what the solvers work on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pairloc.inference.problem import Edge, Problem


@dataclass(frozen=True)
class Batch:
    """P problems with the same edges, padded to B labels.

    A label that a node does not have is infinite in `unary` and zero in `pairwise`: messages to it stay finite and
    nothing ever chooses it.
    """

    unary: Tensor  # (P, N, B)
    edges: tuple[Edge, ...]  # (i, j) with i < j, ascending
    pairwise: Tensor  # (P, E, B, B): [p, e, label of i, label of j]

    @classmethod
    def of(cls, problems: Sequence[Problem], dtype: torch.dtype, device: torch.device | str) -> "Batch":
        """Problems with the same number of nodes and the same edges; numbers of labels may differ."""
        edges = problems[0].edges
        for index, problem in enumerate(problems):
            if len(problem) != len(problems[0]) or problem.edges != edges:
                raise ValueError(f"problem {index}: has other nodes or edges than problem 0; a batch is of one shape")
        labels = max((size for problem in problems for size in problem.sizes), default=1)
        unary = torch.full((len(problems), len(problems[0]), labels), torch.inf, dtype=dtype)
        pairwise = torch.zeros(len(problems), len(edges), labels, labels, dtype=dtype)
        for p, problem in enumerate(problems):
            for node, potentials in enumerate(problem.unary):
                unary[p, node, : len(potentials)] = torch.from_numpy(potentials)
            for e, table in enumerate(problem.pairwise):
                pairwise[p, e, : table.shape[0], : table.shape[1]] = torch.from_numpy(table)
            for node, potentials in enumerate(problem.unary):
                if not torch.isfinite(unary[p, node, : len(potentials)]).all():
                    raise ValueError(f"node {node}: has a potential too large for {dtype}")
            if not torch.isfinite(pairwise[p]).all():
                raise ValueError(f"problem {p}: has a pairwise potential too large for {dtype}")
        return cls(unary.to(device), edges, pairwise.to(device))

    def __len__(self) -> int:
        return len(self.unary)

    @property
    def nodes(self) -> int:
        """N."""
        return self.unary.shape[1]

    def part(self, rows: slice) -> "Batch":
        """Some of the problems."""
        return Batch(self.unary[rows], self.edges, self.pairwise[rows])

    def double(self) -> "Batch":
        """The same in double precision."""
        return Batch(self.unary.double(), self.edges, self.pairwise.double())

    def one_by_one(self) -> "list[Batch]":
        """Every problem by itself, in double precision on the CPU: for solvers that search."""
        parts = (self.part(slice(p, p + 1)) for p in range(len(self)))
        return [Batch(part.unary.double().cpu(), part.edges, part.pairwise.double().cpu()) for part in parts]

    @cached_property
    def above(self) -> list[list[tuple[int, int]]]:
        """For every node its edges to higher nodes: (place of the edge, node)."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.nodes)]
        for e, (i, j) in enumerate(self.edges):
            found[i].append((e, j))
        return found

    @cached_property
    def below(self) -> list[list[tuple[int, int]]]:
        """For every node its edges to lower nodes: (place of the edge, node)."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.nodes)]
        for e, (i, j) in enumerate(self.edges):
            found[j].append((e, i))
        return found

    def energy(self, labels: Tensor) -> Tensor:
        """The energy of labellings (P, N), summed in double precision -> (P,)."""
        total = self.unary.gather(2, labels[..., None]).double().sum(dim=(1, 2))
        if self.edges:
            p, e = self._rows, torch.arange(len(self.edges), device=labels.device)
            chosen = self.pairwise[p, e, labels[:, self._lower], labels[:, self._higher]]  # (P, E)
            total = total + chosen.double().sum(dim=1)
        return total

    def conditional(self, labels: Tensor, node: int, *, without: int | None = None) -> Tensor:
        """The potentials of one node's labels given all others' (but for the node `without`): (P, N) -> (P, B)."""
        cost = self.unary[:, node]
        above = [(e, j) for e, j in self.above[node] if j != without]
        below = [(e, i) for e, i in self.below[node] if i != without]
        if above:
            e, j = zip(*above, strict=True)
            tables = self.pairwise.transpose(2, 3)[self._rows, list(e), labels[:, list(j)]]  # (P, above, B)
            cost = cost + tables.sum(dim=1)
        if below:
            e, i = zip(*below, strict=True)
            cost = cost + self.pairwise[self._rows, list(e), labels[:, list(i)]].sum(dim=1)
        return cost

    @cached_property
    def _rows(self) -> Tensor:
        return torch.arange(len(self), device=self.unary.device)[:, None]  # (P, 1)

    @cached_property
    def _lower(self) -> list[int]:
        return [i for i, _ in self.edges]

    @cached_property
    def _higher(self) -> list[int]:
        return [j for _, j in self.edges]


@dataclass(frozen=True)
class Options:
    """How long a solver may work, and from where it starts."""

    iterations: int
    tolerance: float
    generator: torch.Generator  # on the CPU, so that every device draws the same
    start: Tensor | None = None  # (P, N) labels, for the solvers that improve one


@dataclass(frozen=True)
class Solved:
    """The solutions of a batch."""

    labels: Tensor  # (P, N)
    energy: Tensor  # (P,) double
    lower_bound: Tensor  # (P,) double; minus infinity where the solver has none
    iterations: Tensor  # (P,) how many were made
    history: Tensor  # (T, P, 2) lower bound and lowest energy after every iteration
    gaps: Tensor  # (P, N) what the best other label of a node would cost more


def without_bound(batch: Batch, labels: Tensor, energies: list[Tensor], iterations: int) -> Solved:
    """The result of a solver that only looks for a low energy: (P, N) labels, the energy (P,) of every iteration."""
    energy = batch.energy(labels)
    history = torch.stack(energies) if energies else energy[None]
    unbounded = torch.full_like(history, -torch.inf)
    return Solved(
        labels,
        energy,
        torch.full_like(energy, -torch.inf),
        torch.full((len(batch),), iterations),
        torch.stack([unbounded, history.cummin(dim=0).values], dim=-1),
        conditional_gaps(batch, labels),
    )


def conditional_gaps(batch: Batch, labels: Tensor) -> Tensor:
    """What the best other label of each node would cost more if the others stayed: (P, N) -> (P, N)."""
    gaps = [label_gap(batch.conditional(labels, node), labels[:, node]) for node in range(batch.nodes)]
    return torch.stack(gaps, dim=1) if gaps else torch.zeros_like(labels, dtype=torch.float64)


def label_gap(cost: Tensor, chosen: Tensor) -> Tensor:
    """What the best label but the chosen (...) costs more, by cost (..., B); infinite where there is no other."""
    own = cost.gather(-1, chosen[..., None])
    others = cost.scatter(-1, chosen[..., None], torch.inf)
    return (others.amin(dim=-1) - own[..., 0]).double()


def proven_gap(base: Tensor, beliefs: Tensor, labels: Tensor, energy: Tensor) -> Tensor:
    """What the best other label of every node costs more at least, whatever the others do: (P, N).

    A label of belief b (P, N, B) has no labelling below the bound (P,) that was proved before these beliefs, and b.
    """
    others = beliefs.scatter(2, labels[..., None], torch.inf).amin(dim=2).double()  # (P, N)
    return base[:, None] + others - energy[:, None].to(others.device)


def one(labels: Tensor, energy: float, lower_bound: float, history: list[tuple[float, float]], gaps: Tensor) -> Solved:
    """The solution of a batch of one."""
    values = torch.tensor(history, dtype=torch.float64)[:, None]  # (T, 1, 2)
    return Solved(
        labels,
        torch.tensor([energy], dtype=torch.float64),
        torch.tensor([lower_bound], dtype=torch.float64),
        torch.tensor([len(history)]),
        values,
        gaps,
    )


def joined(parts: list[Solved]) -> Solved:
    """The solutions of parts of a batch as one; a shorter history stays at its last value."""
    longest = max(len(part.history) for part in parts)
    histories = [
        torch.cat([part.history, part.history[-1:].expand(longest - len(part.history), -1, -1)]) for part in parts
    ]
    columns = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("labels", "energy", "lower_bound", "iterations", "gaps")
    }
    return Solved(history=torch.cat(histories, dim=1), **columns)
