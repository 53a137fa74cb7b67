"""Theorems of graph labelling, on problems small enough for brute force."""

import itertools
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pairloc.inference import SOLVERS, Problem, solve, solve_batch
from pairloc.inference.batch import Batch
from pairloc.inference.planted import planted_problem
from pairloc.inference.trws import Sweeps
from referees import brute_force, lp_bound, min_marginals, plain_trws, problems, toulbar2

few_examples = settings(max_examples=40, deadline=None)
CLOSE = 1e-6


@few_examples
@given(problems(labels=5))
def test_exact_equals_brute_force_and_toulbar2(problem: Problem) -> None:
    optimum = brute_force(problem)
    assert problem.energy(toulbar2(problem)) == pytest.approx(optimum, abs=1e-5)
    for solver in ("exact", "a-star"):
        solution = solve(problem, solver)
        assert solution.energy == pytest.approx(optimum, abs=CLOSE)
        assert solution.certified


@few_examples
@given(problems(labels=4))
def test_bounds_and_energies_are_in_order(problem: Problem) -> None:
    """TRW-S bound <= linear relaxation <= optimum <= energy of every solver; no bound is above the optimum."""
    optimum, relaxed = brute_force(problem), lp_bound(problem)
    assert relaxed <= optimum + CLOSE
    for solver in SOLVERS:
        solution = solve(problem, solver)
        assert solution.energy == pytest.approx(problem.energy(solution.labels))
        assert solution.energy >= optimum - CLOSE
        assert solution.lower_bound <= optimum + CLOSE
        assert not solution.certified or solution.energy <= optimum + CLOSE
        if solver == "trws":
            assert solution.lower_bound <= relaxed + CLOSE


@few_examples
@given(problems())
def test_the_bound_never_falls_and_equals_the_reference(problem: Problem) -> None:
    solution = solve(problem, "trws", iterations=12, tolerance=0)
    plain = plain_trws(problem, len(solution.history))
    assert (np.diff(solution.history[:, 0]) >= -1e-9).all()
    np.testing.assert_allclose(solution.history[:, 0], np.maximum.accumulate(plain), atol=1e-9)


@few_examples
@given(problems(nodes=8, labels=4, tree=True))
def test_trees_are_exact_and_certified(problem: Problem) -> None:
    solution = solve(problem, "trws")
    assert solution.certified
    assert solution.energy == pytest.approx(brute_force(problem), abs=CLOSE)


@few_examples
@given(problems(labels=4), st.integers(0, 9))
def test_beliefs_bound_min_marginals(problem: Problem, passes: int) -> None:
    """A labelling that uses a label of belief b has at least energy bound + b; `exact` excludes labels by this."""
    sweeps = Sweeps(Batch.of([problem], torch.float64, "cpu"))
    base = -np.inf
    for _ in range(passes + 2):
        sweeps.forward()
        before = base
        bound, beliefs = sweeps.backward()
        base = max(base, float(bound))
    for node, marginals in enumerate(min_marginals(problem)):
        assert (before + beliefs[0, node, : len(marginals)].numpy() <= marginals + 1e-9).all()


@few_examples
@given(problems(labels=4))
def test_gaps_of_bounding_solvers_never_exceed_the_true_gaps(problem: Problem) -> None:
    for solver in ("trws", "exact", "a-star"):
        solution = solve(problem, solver)
        for node, marginals in enumerate(min_marginals(problem)):
            others = np.delete(marginals, solution.labels[node])
            assert solution.gaps[node] <= (others.min() if len(others) else np.inf) - solution.energy + 1e-6


@few_examples
@given(st.integers(1, 6), st.integers(0, 999))
def test_gaps_on_chains_are_exact(nodes: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    unary, tables = generator.normal(size=(nodes, 3)), generator.normal(size=(nodes, 3, 3))
    problem = Problem(unary, {(node, node + 1): tables[node] for node in range(nodes - 1)})
    solution = solve(problem, "trws")
    true = [np.delete(m, label).min() for m, label in zip(min_marginals(problem), solution.labels, strict=True)]
    np.testing.assert_allclose(solution.gaps, np.array(true) - solution.energy, atol=1e-6)


@few_examples
@given(problems(), st.integers(0, 99))
def test_icm_never_raises_the_energy_and_ends_in_a_local_minimum(problem: Problem, seed: int) -> None:
    start = solve(problem, "random", seed=seed).labels
    for solver in ("icm", "block-icm"):
        solution = solve(problem, solver, start=start.tolist())
        assert (np.diff([problem.energy(start), *solution.history[:, 1]]) <= 1e-9).all()
        for node, size in enumerate(problem.sizes):
            for label in range(size):
                changed = solution.labels.copy()
                changed[node] = label
                assert problem.energy(changed) >= solution.energy - 1e-9
        if solver == "block-icm":
            for i, j in problem.edges:
                for labels in itertools.product(range(problem.sizes[i]), range(problem.sizes[j])):
                    changed = solution.labels.copy()
                    changed[[i, j]] = labels
                    assert problem.energy(changed) >= solution.energy - 1e-9


@few_examples
@given(problems(labels=4), st.randoms())
def test_the_order_of_the_nodes_does_not_matter(problem: Problem, random: Random) -> None:
    order = list(range(len(problem)))
    random.shuffle(order)
    index = {node: new for new, node in enumerate(order)}
    tables = zip(problem.edges, problem.pairwise, strict=True)
    shuffled = Problem(
        [problem.unary[node] for node in order], {(index[i], index[j]): table for (i, j), table in tables}
    )
    assert solve(shuffled, "exact").energy == pytest.approx(solve(problem, "exact").energy, abs=CLOSE)


@few_examples
@given(problems(labels=4), st.data())
def test_every_solver_respects_fixed_nodes(problem: Problem, data: st.DataObject) -> None:
    nodes = data.draw(st.sets(st.sampled_from(range(len(problem)))))
    fixed = {node: data.draw(st.integers(0, problem.sizes[node] - 1)) for node in nodes}
    allowed = [
        labels
        for labels in itertools.product(*map(range, problem.sizes))
        if all(labels[n] == x for n, x in fixed.items())
    ]
    optimum = min(problem.energy(labels) for labels in allowed)
    for solver in SOLVERS:
        solution = solve(problem, solver, fixed=fixed)
        assert all(solution.labels[node] == label for node, label in fixed.items())
        assert solution.lower_bound <= optimum + CLOSE <= solution.energy + 2 * CLOSE
    assert solve(problem, "exact", fixed=fixed).energy == pytest.approx(optimum, abs=CLOSE)


@few_examples
@given(st.integers(1, 5), st.integers(0, 999), st.booleans())
def test_a_batch_equals_its_problems_one_by_one(count: int, seed: int, integers: bool) -> None:
    generator = np.random.default_rng(seed)
    edges = [(0, 1), (1, 2), (0, 3)]
    batch = []
    for _ in range(count):
        sizes = generator.integers(1, 5, 4)
        draw = (
            (lambda *shape: generator.integers(-2, 3, shape))
            if integers
            else (lambda *shape: generator.normal(size=shape))
        )
        batch.append(Problem([draw(size) for size in sizes], {(i, j): draw(sizes[i], sizes[j]) for i, j in edges}))
    # The draws of "random" and the stopping criterion of "bp" depend on the batch.
    for solver in SOLVERS.keys() - {"random", "bp"}:
        together = solve_batch(batch, solver)
        for solution, problem in zip(together, batch, strict=True):
            alone = solve(problem, solver)
            assert solution.energy == pytest.approx(alone.energy, abs=CLOSE), solver
            assert solution.lower_bound == pytest.approx(alone.lower_bound, abs=1e-4), solver


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("problem", "energy"),
    [
        (Problem([[3.0]], {}), 3.0),
        (Problem([[3.0, 1.0, 2.0]], {}), 1.0),
        (Problem([[1.0], [2.0]], {(0, 1): [[5.0]]}), 8.0),
        (Problem([[0.0, 0.0]] * 3, {(i, j): np.zeros((2, 2)) for i, j in ((0, 1), (0, 2), (1, 2))}), 0.0),
        (Problem([[1.0, 2.0], [4.0, 3.0]], {}), 4.0),
    ],
)
def test_small_cases(solver: str, problem: Problem, energy: float) -> None:
    solution = solve(problem, solver)
    if solver == "random":
        assert solution.energy >= energy
    else:
        assert solution.energy == energy
    if solver in ("trws", "exact", "a-star"):
        assert solution.certified


def test_planted_objects_are_found_and_mostly_certified() -> None:
    generator = np.random.default_rng(0)
    planted = [planted_problem(8, 100, generator) for _ in range(20)]
    solutions = solve_batch([problem for problem, _ in planted], "trws")
    optima = [problem.energy(toulbar2(problem)) for problem, _ in planted]
    optimal = sum(s.energy <= optimum + 1e-5 for s, optimum in zip(solutions, optima, strict=True))
    assert optimal >= 19
    assert sum(solution.certified for solution in solutions) >= 15
    right = np.mean([(s.labels == truth).mean() for s, (_, truth) in zip(solutions, planted, strict=True)])
    assert right > 0.9


def test_single_precision_is_close_to_double() -> None:
    generator = np.random.default_rng(1)
    batch = [planted_problem(8, 30, generator, spread=0.9)[0] for _ in range(6)]
    single = solve_batch(batch, "trws", dtype=torch.float32, iterations=50, tolerance=0)
    double = solve_batch(batch, "trws", iterations=50, tolerance=0)
    for a, b in zip(single, double, strict=True):
        assert a.energy == pytest.approx(b.energy, abs=1e-4)
        assert a.lower_bound == pytest.approx(b.lower_bound, abs=1e-4)


def test_a_stopped_search_is_not_certified() -> None:
    generator = np.random.default_rng(0)
    edges = list(itertools.combinations(range(8), 2))
    problem = Problem(generator.normal(size=(8, 12)), {edge: generator.normal(size=(12, 12)) for edge in edges})
    optimum = problem.energy(toulbar2(problem))
    for solver in ("exact", "a-star"):
        solution = solve(problem, solver, iterations=2)
        assert not solution.certified
        assert solution.lower_bound <= optimum <= solution.energy + CLOSE
        assert solution.iterations <= 4


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e6])
def test_no_bound_is_above_the_optimum_despite_rounding(solver: str, dtype: torch.dtype, offset: float) -> None:
    """Large potentials cancel, so the energy is small but its rounding error is not."""
    generator = np.random.default_rng(0)
    for _ in range(3):
        unary = generator.normal(size=(4, 3))
        unary[0] += offset
        unary[1] -= offset
        edges = list(itertools.combinations(range(4), 2))
        problem = Problem(unary, {edge: generator.normal(size=(3, 3)) for edge in edges})
        optimum, solution = brute_force(problem), solve(problem, solver, dtype=dtype)
        assert solution.lower_bound <= optimum + 1e-12
        assert solution.lower_bound <= solution.energy
        assert not solution.certified or solution.energy <= optimum + 1e-5


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_problem_without_nodes(solver: str) -> None:
    solution = solve(Problem([], {}), solver)
    assert (solution.energy, solution.lower_bound, solution.certified) == (0.0, 0.0, True)


def test_potentials_too_large_for_single_precision_are_rejected() -> None:
    with pytest.raises(ValueError, match="node 0: has a potential too large"):
        solve(Problem([[2e39, 1e39]], {}), dtype=torch.float32)


def test_trws_beats_icm_on_a_long_chain() -> None:
    n = 2000
    generator = np.random.default_rng(0)
    chain = Problem(generator.normal(size=(n, 3)), {(i, i + 1): generator.normal(size=(3, 3)) for i in range(n - 1)})
    assert solve(chain, "trws", iterations=3).energy <= solve(chain, "icm", iterations=5).energy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": torch.float16}, "dtype is torch.float16"),
        ({"tolerance": float("inf")}, "tolerance inf"),
        ({"solver": "magic"}, "no solver 'magic'; known are trws"),
        ({"iterations": 0}, "iterations is 0"),
        ({"tolerance": float("nan")}, "tolerance nan"),
        ({"start": [0, 9]}, "node 1: label 9 is out of range"),
        ({"start": [0]}, "1 labels for 2 nodes"),
        ({"fixed": {7: 0}}, "node 7: is fixed"),
        ({"fixed": {0: 5}}, "node 0: is fixed to label 5, but has 2 labels"),
    ],
)
def test_bad_calls(arguments: dict[str, object], message: str) -> None:
    problem = Problem([[0.0, 1.0], [1.0, 0.0]], {(0, 1): np.eye(2)})
    with pytest.raises(ValueError, match=message):
        solve(problem, **arguments)  # type: ignore[arg-type]


def test_the_problems_of_a_batch_need_the_same_edges() -> None:
    with_edge, without_edge = Problem([[0.0], [0.0]], {(0, 1): [[1.0]]}), Problem([[0.0], [0.0]], {})
    with pytest.raises(ValueError, match="problem 1: its nodes or edges differ from problem 0's"):
        solve_batch([with_edge, without_edge])
    assert solve_batch([]) == []
