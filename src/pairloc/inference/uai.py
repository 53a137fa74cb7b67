"""The UAI format for pairwise MARKOV networks, whose factors are exp(-potential)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pairloc.io import write_text

Floats = npt.NDArray[np.float64]
_MAX_POTENTIAL = 700.0  # beyond it, the exponential overflows double precision


def read_uai(path: Path) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
    """Read the unary potentials (B_i,) and the pairwise tables (B_i, B_j) by edge.

    Factors of the same scope are multiplied. An entry of zero forbids its labels: it becomes a potential higher than
    the energy range of all allowed labellings, so that the minimum does not change. Raises ValueError naming the file
    if it is malformed.
    """
    try:
        words = path.read_text(encoding="ascii").split()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not a UAI file: it is not ASCII text") from error
    if not words or words[0] != "MARKOV":
        raise ValueError(f"{path}: is not a UAI file of type MARKOV: its first word must be MARKOV")
    numbers = _Words(path, words[1:])
    sizes = [numbers.count("a number of labels", at_least=1) for _ in range(numbers.count("the number of nodes"))]
    scopes = []
    for factor in range(numbers.count("the number of factors")):
        scope = [numbers.count("a node") for _ in range(numbers.count(f"the size of factor {factor}"))]
        if len(scope) > 2:
            raise ValueError(f"{path}: factor {factor} joins {len(scope)} nodes; at most 2 are supported")
        if any(node >= len(sizes) for node in scope) or len(set(scope)) < len(scope):
            raise ValueError(f"{path}: factor {factor} has scope {scope}, which does not fit {len(sizes)} nodes")
        scopes.append(scope)
    tables = []
    for factor, scope in enumerate(scopes):
        shape = tuple(sizes[node] for node in scope)
        if numbers.count(f"the length of factor {factor}") != int(np.prod(shape)):
            raise ValueError(f"{path}: factor {factor} does not have the {int(np.prod(shape))} entries its scope needs")
        tables.append(numbers.table(factor, shape))
    numbers.end()
    return _potentials(sizes, scopes, tables)


def _potentials(
    sizes: list[int], scopes: list[list[int]], tables: list[Floats]
) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
    with np.errstate(divide="ignore"):
        logs = [-np.log(table) for table in tables]
    finite = [log[np.isfinite(log)] for log in logs]
    forbidden = 1.0 + sum(float(np.ptp(values)) for values in finite if values.size)
    unary = [np.zeros(size) for size in sizes]
    pairwise: dict[tuple[int, int], Floats] = {}
    for scope, log, values in zip(scopes, logs, finite, strict=True):
        highest = float(values.max()) if values.size else 0.0
        table = np.where(np.isfinite(log), log, highest + forbidden)
        match scope:
            case [i, j]:
                edge, table = ((i, j), table) if i < j else ((j, i), table.T)
                pairwise[edge] = pairwise.get(edge, np.zeros(table.shape)) + table
            case [i]:
                unary[i] = unary[i] + table
            case _ if unary:
                unary[0] = unary[0] + float(table)
    return unary, pairwise


def write_uai(path: Path, unary: Sequence[Floats], pairwise: Mapping[tuple[int, int], Floats]) -> None:
    """Write exp(-potential) with all digits, so that energies survive a round trip.

    Raises ValueError naming the node or edge whose potential is too large for the format.
    """
    named = [(f"node {node}", potentials) for node, potentials in enumerate(unary)]
    named += [(f"edge {edge}", table) for edge, table in pairwise.items()]
    for name, potentials in named:
        if np.abs(potentials).max() > _MAX_POTENTIAL:
            raise ValueError(
                f"{name}: has a potential beyond {_MAX_POTENTIAL:g}, whose exponential overflows; scale the problem"
            )
    lines = ["MARKOV", str(len(unary)), " ".join(str(len(potentials)) for potentials in unary), str(len(named))]
    lines += [f"1 {node}" for node in range(len(unary))] + [f"2 {i} {j}" for i, j in pairwise]
    for _, potentials in named:
        values = np.exp(-potentials).ravel().tolist()
        lines += ["", str(len(values)), " ".join(map(repr, values))]
    write_text(path, "\n".join(lines) + "\n")


class _Words:
    """Reads the words of a file in order."""

    def __init__(self, path: Path, words: list[str]) -> None:
        self._path, self._words, self._next = path, words, 0

    def count(self, what: str, at_least: int = 0) -> int:
        """The next word as a whole number."""
        word = self._words[self._next] if self._next < len(self._words) else "the end of the file"
        if not (word.isdecimal() and len(word) < 10 and int(word) >= at_least):
            raise ValueError(f"{self._path}: expected {what}, found {word[:40]!r}")
        self._next += 1
        return int(word)

    def table(self, factor: int, shape: tuple[int, ...]) -> Floats:
        """The next words as a factor's table."""
        words = self._words[self._next : self._next + int(np.prod(shape))]
        self._next += len(words)
        try:
            values = np.array(words, dtype=np.float64).reshape(shape)
        except ValueError as error:
            raise ValueError(f"{self._path}: factor {factor} is truncated or contains a non-number") from error
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError(f"{self._path}: factor {factor} has a number that is negative or not finite")
        return values

    def end(self) -> None:
        """Raise ValueError if words are left."""
        if self._next < len(self._words):
            raise ValueError(f"{self._path}: has {len(self._words) - self._next} extra words after the last factor")
