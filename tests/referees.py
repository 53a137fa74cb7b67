"""Slow and independent answers to graph-labelling problems."""

import itertools

import highspy
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pairloc.inference import Problem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@st.composite
def problems(draw: st.DrawFn, nodes: int = 6, labels: int = 6, *, tree: bool = False) -> Problem:
    """Ragged problems with a random subset of edges; potentials are often equal, which is where solvers trip."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = draw(st.integers(1, nodes))
    sizes = [draw(st.integers(1, labels)) for _ in range(n)]
    whole = draw(st.booleans())

    def potentials(*shape: int) -> Floats:
        return generator.integers(-2, 3, shape).astype(float) if whole else generator.normal(0, 1, shape)

    if tree:
        edges = [(int(generator.integers(0, j)), j) for j in range(1, n) if draw(st.booleans())]
    else:
        edges = [edge for edge in itertools.combinations(range(n), 2) if draw(st.booleans())]
    return Problem([potentials(size) for size in sizes], {(i, j): potentials(sizes[i], sizes[j]) for i, j in edges})


def all_labellings(problem: Problem) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(size) for size in problem.sizes)))


def brute_force(problem: Problem) -> float:
    return min(problem.energy(labels) for labels in all_labellings(problem))


def min_marginals(problem: Problem) -> list[Floats]:
    """The least energy with each label of each node."""
    best = [np.full(size, np.inf) for size in problem.sizes]
    for labels in all_labellings(problem):
        energy = problem.energy(labels)
        for node, label in enumerate(labels):
            best[node][label] = min(best[node][label], energy)
    return best


def toulbar2(problem: Problem) -> list[int]:
    """The labels of toulbar2's optimum."""
    import pytoulbar2

    network = pytoulbar2.CFN(ubinit=1e7, resolution=7, verbose=-1)
    for node, potentials in enumerate(problem.unary):
        network.AddVariable(f"x{node}", [f"v{label}" for label in range(len(potentials))])
        network.AddFunction([f"x{node}"], (potentials - potentials.min()).tolist())
    for (i, j), table in zip(problem.edges, problem.pairwise, strict=True):
        network.AddFunction([f"x{i}", f"x{j}"], (table - table.min()).ravel().tolist())
    return [int(label) for label in network.Solve()[0]]


def lp_bound(problem: Problem) -> float:
    """The linear relaxation over the local polytope, by HiGHS."""
    costs: list[float] = []
    unary: list[Ints] = []
    pairwise: list[Ints] = []
    for potentials in problem.unary:
        unary.append(len(costs) + np.arange(len(potentials)))
        costs += potentials.tolist()
    for table in problem.pairwise:
        pairwise.append(len(costs) + np.arange(table.size).reshape(table.shape))
        costs += table.ravel().tolist()
    model = highspy.Highs()
    model.silent()
    for cost in costs:
        model.addVar(0.0, highspy.kHighsInf)
        model.changeColCost(model.getNumCol() - 1, cost)
    for variables in unary:
        model.addRow(1.0, 1.0, len(variables), variables.astype(np.int32), np.ones(len(variables)))
    for (i, j), joint in zip(problem.edges, pairwise, strict=True):
        for single, rows in ((unary[i], joint), (unary[j], joint.T)):
            for one, row in zip(single.tolist(), rows.tolist(), strict=True):
                index = np.array([one, *row], dtype=np.int32)
                model.addRow(0.0, 0.0, len(index), index, np.array([-1.0, *np.ones(len(row))]))
    model.run()
    return float(model.getInfo().objective_function_value)


def plain_trws(problem: Problem, iterations: int) -> list[float]:
    """TRW-S written out: the lower bound after every iteration."""
    n = len(problem)
    table = {}
    for (i, j), values in zip(problem.edges, problem.pairwise, strict=True):
        table[i, j], table[j, i] = values, values.T
    message = {(s, t): np.zeros(problem.sizes[t]) for s, t in table}
    neighbours = {s: [t for t in range(n) if (s, t) in table] for s in range(n)}
    share = {s: 1 / max(sum(t < s for t in neighbours[s]), sum(t > s for t in neighbours[s]), 1) for s in range(n)}
    bounds = []
    for _ in range(iterations):
        for s, later in [(s, True) for s in range(n)] + [(s, False) for s in reversed(range(n))]:
            if s == n - 1 and not later:
                bounds.append(0.0)
            belief = problem.unary[s] + sum((message[t, s] for t in neighbours[s]), np.zeros(problem.sizes[s]))
            gain = belief.min()
            belief = belief - gain
            for t in neighbours[s]:
                if (t > s) == later:
                    costs = share[s] * belief - message[t, s]
                    new = np.array([min(costs + table[s, t][:, x]) for x in range(problem.sizes[t])])
                    gain += new.min()
                    message[s, t] = new - new.min()
            if not later:
                bounds[-1] += gain
    return bounds
