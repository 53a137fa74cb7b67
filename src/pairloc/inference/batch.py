"""Many problems of one shape as tensors, which the solvers work on."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pairloc.inference.problem import Edge, Problem


@dataclass(frozen=True)
class Batch:
    """P problems with the same edges, padded to B labels.

    A label that a node does not have is infinite in `unary` and zero in `pairwise`, so that messages to it stay finite
    and no solver chooses it.
    """

    unary: Tensor  # (P, N, B)
    edges: tuple[Edge, ...]  # (i, j) with i < j, ascending
    pairwise: Tensor  # (P, E, B, B): [p, e, label of i, label of j]

    @classmethod
    def of(cls, problems: Sequence[Problem], dtype: torch.dtype, device: torch.device | str) -> "Batch":
        """Stack problems with the same number of nodes and the same edges; numbers of labels may differ.

        Raises ValueError if nodes or edges differ, or if a potential overflows `dtype`.
        """
        edges = problems[0].edges
        for index, problem in enumerate(problems):
            if len(problem) != len(problems[0]) or problem.edges != edges:
                raise ValueError(f"problem {index}: its nodes or edges differ from problem 0's; solve it separately")
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
                    raise ValueError(f"problem {p}, node {node}: has a potential too large for {dtype}; scale it down")
            if not torch.isfinite(pairwise[p]).all():
                raise ValueError(f"problem {p}: has a pairwise potential too large for {dtype}; scale it down")
        return cls(unary.to(device), edges, pairwise.to(device))

    def __len__(self) -> int:
        return len(self.unary)

    @property
    def nodes(self) -> int:
        """Number of nodes, N."""
        return self.unary.shape[1]

    def part(self, rows: slice) -> "Batch":
        """A subset of the problems."""
        return Batch(self.unary[rows], self.edges, self.pairwise[rows])

    def double(self) -> "Batch":
        """The same problems in double precision."""
        return Batch(self.unary.double(), self.edges, self.pairwise.double())

    def one_by_one(self) -> "list[Batch]":
        """Every problem as a batch of its own, in double precision on the CPU: for solvers that search."""
        parts = (self.part(slice(p, p + 1)) for p in range(len(self)))
        return [Batch(part.unary.double().cpu(), part.edges, part.pairwise.double().cpu()) for part in parts]

    @cached_property
    def above(self) -> list[list[tuple[int, int]]]:
        """Edges to higher nodes of every node: (index of the edge, higher node)."""
        edges: list[list[tuple[int, int]]] = [[] for _ in range(self.nodes)]
        for e, (i, j) in enumerate(self.edges):
            edges[i].append((e, j))
        return edges

    @cached_property
    def below(self) -> list[list[tuple[int, int]]]:
        """Edges to lower nodes of every node: (index of the edge, lower node)."""
        edges: list[list[tuple[int, int]]] = [[] for _ in range(self.nodes)]
        for e, (i, j) in enumerate(self.edges):
            edges[j].append((e, i))
        return edges

    def energy(self, labels: Tensor) -> Tensor:
        """Energies of labellings, summed in double precision: (P, N) -> (P,)."""
        total = self.unary.gather(2, labels[..., None]).double().sum(dim=(1, 2))
        if self.edges:
            p, e = self._rows, torch.arange(len(self.edges), device=labels.device)
            chosen = self.pairwise[p, e, labels[:, self._lower], labels[:, self._higher]]  # (P, E)
            total = total + chosen.double().sum(dim=1)
        return total

    def conditional(self, labels: Tensor, node: int, *, without: int | None = None) -> Tensor:
        """Potentials of one node's labels given the labels of all nodes except `without`: (P, N) -> (P, B)."""
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
    """Stopping criteria and starting point of a solver."""

    iterations: int
    tolerance: float
    generator: torch.Generator  # on the CPU, so that all devices draw the same numbers
    start: Tensor | None = None  # (P, N) labels, for solvers that improve a labelling


@dataclass(frozen=True)
class Solved:
    """The solutions of a batch."""

    labels: Tensor  # (P, N)
    energy: Tensor  # (P,) double
    lower_bound: Tensor  # (P,) double; minus infinity if the solver has no bound
    iterations: Tensor  # (P,)
    history: Tensor  # (T, P, 2) lower bound and lowest energy after every iteration
    gaps: Tensor  # (P, N) energy increase if a node takes its best other label; see `Solution`


def without_bound(batch: Batch, labels: Tensor, energies: list[Tensor], iterations: int) -> Solved:
    """The result of a solver without a lower bound: labels (P, N) and the energy (P,) of every iteration."""
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
    """Energy increase if a node takes its best other label and the others keep theirs: (P, N) -> (P, N)."""
    gaps = [label_gap(batch.conditional(labels, node), labels[:, node]) for node in range(batch.nodes)]
    return torch.stack(gaps, dim=1) if gaps else torch.zeros_like(labels, dtype=torch.float64)


def label_gap(cost: Tensor, chosen: Tensor) -> Tensor:
    """Cost of the best other label minus that of the chosen one: (..., B), (...) -> (...); infinite without others."""
    chosen_cost = cost.gather(-1, chosen[..., None])
    others = cost.scatter(-1, chosen[..., None], torch.inf)
    return (others.amin(dim=-1) - chosen_cost[..., 0]).double()


def proven_gap(base: Tensor, beliefs: Tensor, labels: Tensor, energy: Tensor) -> Tensor:
    """Lower limit of the energy increase if a node takes its best other label, whatever the others choose: (P, N).

    A labelling that uses a label of belief b has at least energy `base` + b, where `base` (P,) is the bound proved
    before the pass that computed the beliefs (P, N, B).
    """
    others = beliefs.scatter(2, labels[..., None], torch.inf).amin(dim=2).double()  # (P, N)
    return base[:, None] + others - energy[:, None].to(others.device)


def single_solved(
    labels: Tensor, energy: float, lower_bound: float, history: list[tuple[float, float]], gaps: Tensor
) -> Solved:
    """The solution of a batch of one problem: labels and gaps (1, N)."""
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
    """Concatenate the solutions of parts of a batch; a shorter history repeats its last value."""
    longest = max(len(part.history) for part in parts)
    histories = [
        torch.cat([part.history, part.history[-1:].expand(longest - len(part.history), -1, -1)]) for part in parts
    ]
    columns = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in ("labels", "energy", "lower_bound", "iterations", "gaps")
    }
    return Solved(history=torch.cat(histories, dim=1), **columns)
