"""A graph-labelling problem: choose one label per node to minimise the sum of unary and pairwise potentials."""

import math
import operator
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pairloc.inference.uai import read_uai, write_uai

Floats = npt.NDArray[np.float64]
Edge = tuple[int, int]


def _array(values: npt.ArrayLike, what: str) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what}: its potentials are not an array of numbers: {str(error)[:80]}") from error


class Problem:
    """A graph labelling problem: N nodes with B_i labels each, potentials on the nodes and on any subset of edges.

    Parameters
    ----------
    unary : (N, B), or a sequence of N vectors (B_i,)
    pairwise : maps an edge (i, j) to its (B_i, B_j) table; tables given for (i, j) and (j, i) are added

    Raises
    ------
    ValueError : potentials of a node or an edge, which is named, cannot be used

    Examples
    --------
    >>> problem = Problem([[0.0, 1.0], [3.0, 0.0]], {(0, 1): [[0.0, 2.0], [2.0, 0.0]]})
    >>> problem.energy([1, 1])
    1.0
    """

    def __init__(
        self, unary: Sequence[npt.ArrayLike] | npt.NDArray[np.floating], pairwise: Mapping[Edge, npt.ArrayLike]
    ) -> None:
        self.unary = tuple(_array(potentials, f"node {node}") for node, potentials in enumerate(unary))
        for node, potentials in enumerate(self.unary):
            if potentials.ndim != 1:
                raise ValueError(f"node {node}: its potentials have shape {potentials.shape}, not (labels,)")
            if not len(potentials):
                raise ValueError(f"node {node}: has no label (an empty bag); leave it out")
            if not np.isfinite(potentials).all():
                raise ValueError(f"node {node}: has a potential that is not finite")
        tables: dict[Edge, Floats] = {}
        for edge, table in pairwise.items():
            (i, j), potentials = self._edge(edge, _array(table, f"edge {edge}"))
            tables[i, j] = tables[i, j] + potentials if (i, j) in tables else potentials
            if not np.isfinite(tables[i, j]).all():
                raise ValueError(f"edge {edge}: has a potential that is not finite")
        self.edges: tuple[Edge, ...] = tuple(sorted(tables))
        self.pairwise = tuple(tables[edge] for edge in self.edges)

    def _edge(self, edge: Edge, table: Floats) -> tuple[Edge, Floats]:
        """Direct an edge from its lower to its higher node, transposing its table if needed."""
        try:
            i, j = (operator.index(end) for end in edge)
        except (TypeError, ValueError) as error:
            raise ValueError(f"edge {edge!r}: is not a pair of nodes") from error
        if not (0 <= i < len(self.unary) and 0 <= j < len(self.unary)) or i == j:
            raise ValueError(f"edge {edge}: does not join two of the {len(self.unary)} nodes")
        if table.shape != (self.sizes[i], self.sizes[j]):
            raise ValueError(f"edge {edge}: its table is {table.shape}, not {(self.sizes[i], self.sizes[j])}")
        return ((i, j), table) if i < j else ((j, i), table.T)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of labels of every node."""
        return tuple(len(potentials) for potentials in self.unary)

    def __len__(self) -> int:
        return len(self.unary)

    def energy(self, labels: Sequence[int] | npt.NDArray[np.integer]) -> float:
        """Energy of a labelling (N,): the sum of its potentials. Raises ValueError for a label out of range."""
        chosen = self._checked(labels)
        unary = math.fsum(float(potentials[label]) for potentials, label in zip(self.unary, chosen, strict=True))
        tables = zip(self.edges, self.pairwise, strict=True)
        return math.fsum([unary, *(float(table[chosen[i], chosen[j]]) for (i, j), table in tables)])

    def rounding(self, precision: float) -> float:
        """Largest possible error of an energy if every potential has a relative error of `precision`."""
        largest = [float(np.abs(potentials).max()) for potentials in (*self.unary, *self.pairwise)]
        return precision * sum(largest)

    def _checked(self, labels: Sequence[int] | npt.NDArray[np.integer]) -> list[int]:
        chosen = [operator.index(label) for label in labels]
        if len(chosen) != len(self):
            raise ValueError(f"{len(chosen)} labels for {len(self)} nodes")
        for node, (label, size) in enumerate(zip(chosen, self.sizes, strict=True)):
            if not 0 <= label < size:
                raise ValueError(f"node {node}: label {label} is out of range; the node has {size} labels")
        return chosen

    def clamped(self, fixed: Mapping[int, int]) -> "Problem":
        """A copy in which every node of `fixed` has only its given label. Raises ValueError if it has no such label."""
        fixed = {operator.index(node): operator.index(label) for node, label in fixed.items()}
        for node, label in fixed.items():
            if not 0 <= node < len(self):
                raise ValueError(f"node {node}: is fixed, but the problem has {len(self)} nodes")
            if not 0 <= label < self.sizes[node]:
                raise ValueError(f"node {node}: is fixed to label {label}, but has {self.sizes[node]} labels")
        kept = [[fixed[node]] if node in fixed else slice(None) for node in range(len(self))]
        tables = zip(self.edges, self.pairwise, strict=True)
        return Problem(
            [potentials[kept[node]] for node, potentials in enumerate(self.unary)],
            {(i, j): table[kept[i]][:, kept[j]] for (i, j), table in tables},
        )

    @classmethod
    def from_uai(cls, path: Path | str) -> "Problem":
        """Read a pairwise MARKOV file of the UAI format, whose factors are exp(-potential).

        Raises ValueError naming the file if it is malformed.
        """
        return cls(*read_uai(Path(path)))

    def to_uai(self, path: Path | str) -> None:
        """Write a MARKOV file of the UAI format. Raises ValueError if a potential exceeds its range (700)."""
        write_uai(Path(path), self.unary, dict(zip(self.edges, self.pairwise, strict=True)))
