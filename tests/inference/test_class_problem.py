import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pairloc.boxes import Floats
from pairloc.inference import Anchors, ClassProblem, PairTable, Relocalization
from pairloc.inference.mini_problems import partition
from pairloc.inference.planted import planted_bags

few_examples = settings(max_examples=30, deadline=None)
PROBLEM_OPTIONS = ("alpha", "alpha_scale")


def relocalize(unary: object, pairs: object, **options: object) -> Relocalization:
    """Build the problem of a class and solve it."""
    problem_options = {name: options.pop(name) for name in PROBLEM_OPTIONS if name in options}
    return ClassProblem(unary, pairs, **problem_options).solve(**options)  # type: ignore[arg-type]


def plain_energy(
    unary: list[Floats],
    table: torch.Tensor,
    selection: list[int],
    alpha: float,
    *,
    per_bag: bool,
) -> float:
    """Equation reloc_full_opt, written out."""
    scale = alpha / max(len(unary) - 1, 1) if per_bag else alpha
    energy = -sum(float(scores[choice]) for scores, choice in zip(unary, selection, strict=True))
    for i, j in itertools.permutations(range(len(unary)), 2):
        energy -= scale * float(table[i, j, selection[i], selection[j]])
    return energy


def bags(draw: st.DrawFn) -> tuple[list[Floats], torch.Tensor]:
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    m = draw(st.integers(1, 7))
    sizes = [draw(st.integers(1, 5)) for _ in range(m)]
    unary = [generator.normal(size=size) for size in sizes]
    return unary, torch.from_numpy(generator.normal(size=(m, m, max(sizes), max(sizes))))


cases = st.composite(bags)()
scales = st.sampled_from(["none", "per_bag"])


@pytest.mark.parametrize(("bags", "k"), [(12, 3), (24, 4), (24, 8), (48, 8)])
def test_complexity_of_the_paper(bags: int, k: int) -> None:
    """O(M K B^2) pair scores for the initialisation, O(B M) for an iteration of ICM (paper, section 4.1)."""
    unary, table, _ = planted(bags, 10)
    size = unary.shape[1]
    start, *epochs = relocalize(unary, table, k=k, epochs=20).history
    mini_problems = bags * (k - 1) * size**2  # ordered pairs of proposals within the mini-problems
    sums = 2 * bags * bags * size  # ICM compares all proposals with the selection once, in both directions
    assert start.pair_scores == mini_problems + sums
    for epoch in epochs:
        assert epoch.pair_scores <= 4 * epoch.changed * bags * size


@few_examples
@given(cases, scales, st.sampled_from(["mini-problems", "unary", "random"]), st.integers(2, 4))
def test_the_tracked_energy_equals_a_recomputation_and_never_rises(case, scale, init, k) -> None:  # type: ignore[no-untyped-def]
    unary, table = case
    result = relocalize(unary, PairTable(table), alpha=0.7, alpha_scale=scale, start=init, k=k, epochs=50)
    selection = result.selection.tolist()
    assert all(0 <= choice < len(scores) for choice, scores in zip(selection, unary, strict=True))
    assert result.energy == pytest.approx(
        plain_energy(unary, table, selection, 0.7, per_bag=scale == "per_bag"), abs=1e-6
    )
    energies = [step.energy for step in result.history]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(energies))
    assert result.converged
    for bag, scores in enumerate(unary):
        others = [
            [*selection[:bag], choice, *selection[bag + 1 :]]
            for choice in range(len(scores))
            if choice != selection[bag]
        ]
        alternatives = [plain_energy(unary, table, other, 0.7, per_bag=scale == "per_bag") for other in others]
        gap = min(alternatives, default=np.inf) - result.energy
        assert result.gaps[bag] == pytest.approx(gap, abs=1e-6)
        assert gap >= -1e-6


@few_examples
@given(cases, st.integers(0, 99))
def test_from_the_previous_selection_the_energy_never_rises(case, seed) -> None:  # type: ignore[no-untyped-def]
    unary, table = case
    generator = np.random.default_rng(seed)
    previous = torch.tensor([int(generator.integers(len(scores))) for scores in unary])
    before = plain_energy(unary, table, previous.tolist(), 1.0, per_bag=True)
    for init in ("mini-problems", previous):
        result = relocalize(unary, PairTable(table), start=init, k=2, previous=previous, epochs=1)
        assert result.energy <= before + 1e-9


def split(data: st.DataObject, unary: list[Floats]) -> tuple[list[int], list[int], list[int]]:
    """Draw the bags to solve, the others, which become anchors, and a selection of all bags."""
    selection = [data.draw(st.integers(0, len(scores) - 1)) for scores in unary]
    variables = sorted(data.draw(st.sets(st.sampled_from(range(len(unary))), min_size=1)))
    return variables, [bag for bag in range(len(unary)) if bag not in variables], selection


def anchored_problem(
    unary: list[Floats], table: torch.Tensor, variables: list[int], others: list[int], selection: list[int], scale: str
) -> ClassProblem:
    chosen = torch.tensor([selection[bag] for bag in others], dtype=torch.int64)
    anchors = Anchors.of(torch.tensor(others, dtype=torch.int64), chosen)
    padded = torch.full((len(unary), table.shape[2]), -torch.inf, dtype=torch.float64)
    for bag, scores in enumerate(unary):
        padded[bag, : len(scores)] = torch.from_numpy(scores)
    rows = torch.tensor(variables)
    return ClassProblem(padded[rows], PairTable(table), anchors, alpha=0.7, alpha_scale=scale, bags=rows)  # type: ignore[arg-type]


@few_examples
@given(cases, scales, st.data())
def test_fixed_bags_are_equivalent_to_anchors(case, scale, data) -> None:  # type: ignore[no-untyped-def]
    """Energy differences between selections are the same with fixed bags as anchors and in the whole class."""
    unary, table = case
    variables, others, selection = split(data, unary)
    problem = anchored_problem(unary, table, variables, others, selection, scale)
    other = list(selection)
    for bag in variables:
        other[bag] = data.draw(st.integers(0, len(unary[bag]) - 1))
    whole = [plain_energy(unary, table, labels, 0.7, per_bag=scale == "per_bag") for labels in (selection, other)]
    with_anchors = [problem.energy([labels[bag] for bag in variables]) for labels in (selection, other)]
    assert with_anchors[1] - with_anchors[0] == pytest.approx(whole[1] - whole[0], abs=1e-6)


@few_examples
@given(cases, scales, st.data())
def test_conditional_scores_give_the_energy_gain_of_one_change(case, scale, data) -> None:  # type: ignore[no-untyped-def]
    unary, table = case
    variables, others, selection = split(data, unary)
    problem = anchored_problem(unary, table, variables, others, selection, scale)
    chosen = [selection[bag] for bag in variables]
    scores = problem.conditional(torch.tensor(chosen))
    before = problem.energy(chosen)
    for row, bag in enumerate(variables):
        for proposal in range(len(unary[bag])):
            after = problem.energy([*chosen[:row], proposal, *chosen[row + 1 :]])
            gain = float(scores[row, proposal] - scores[row, chosen[row]])
            assert before - after == pytest.approx(gain, abs=1e-6)


@few_examples
@given(cases, st.data())
def test_every_start_respects_anchors_and_never_raises_the_energy(case, data) -> None:  # type: ignore[no-untyped-def]
    unary, table = case
    variables, others, selection = split(data, unary)
    problem = anchored_problem(unary, table, variables, others, selection, "per_bag")
    previous = torch.tensor([selection[bag] for bag in variables])
    for start in ("mini-problems", "unary", "random"):
        result = problem.solve(start, k=2, previous=previous, epochs=50)
        assert result.converged
        assert result.energy <= problem.energy(previous) + 1e-9
        assert result.energy == pytest.approx(problem.energy(result.selection), abs=1e-6)
    labellings = itertools.product(*(range(len(unary[bag])) for bag in variables))
    optimum = min(problem.energy(labels) for labels in labellings)
    best = problem.solve(k=max(2, len(variables)), iterations=300)
    assert best.energy >= optimum - 1e-6
    if best.certified.all():  # a mini-problem of all bags has the same energy as the class problem
        assert best.energy == pytest.approx(optimum, abs=1e-3)


def test_an_anchor_of_weight_two_counts_as_two() -> None:
    table = torch.arange(16, dtype=torch.float64).reshape(2, 2, 2, 2)
    rows, zeros = torch.tensor([0]), torch.zeros(1, 2, dtype=torch.float64)
    for weight in (0.0, 1.0, 2.0):
        anchors = Anchors(torch.tensor([1]), torch.tensor([1]), torch.tensor([weight]))
        problem = ClassProblem(zeros, PairTable(table), anchors, alpha_scale="none", bags=rows)
        assert problem.energy([0]) == -weight * float(table[0, 1, 0, 1] + table[1, 0, 1, 0])


@few_examples
@given(cases)
def test_one_mini_problem_of_all_bags_is_certified_only_if_optimal(case) -> None:  # type: ignore[no-untyped-def]
    unary, table = case
    result = relocalize(unary, PairTable(table), k=max(2, len(unary)), iterations=300)
    labellings = itertools.product(*(range(len(scores)) for scores in unary))
    optimum = min(plain_energy(unary, table, list(labels), 1.0, per_bag=True) for labels in labellings)
    assert result.energy >= optimum - 1e-6
    if result.certified.all():
        assert result.energy == pytest.approx(optimum, abs=1e-3)


@given(st.integers(1, 300), st.integers(2, 70), st.integers(0, 5))
def test_mini_problems_cover_every_bag_once(count: int, k: int, seed: int) -> None:
    groups = partition(count, k, seed)
    assert len(groups) == max(1, round(count / k))
    assert sorted(np.concatenate(groups).tolist()) == list(range(count))
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    assert all((a == b).all() for a, b in zip(groups, partition(count, k, seed), strict=True))


def planted(m: int, b: int, seed: int = 0) -> tuple[torch.Tensor, PairTable, torch.Tensor]:
    unary, features, truth = planted_bags(m, b, np.random.default_rng(seed))
    similarity = torch.from_numpy(np.einsum("ibd,jcd->ijbc", features, features)) * 4 - 2
    return torch.from_numpy(unary), PairTable(similarity), torch.from_numpy(truth)


def test_the_planted_object_is_found() -> None:
    unary, table, truth = planted(40, 20)
    full = relocalize(unary, table, k=8, alpha=4.0)
    assert (full.selection == truth).double().mean() > 0.9
    unary_only = relocalize(unary, table, start="unary", epochs=0, alpha=4.0)
    assert (unary_only.selection == truth).double().mean() < 0.5
    assert full.certified.double().mean() > 0.5
    assert full.energy < unary_only.energy


def test_an_epoch_only_scores_the_bags_that_change() -> None:
    unary, table, _ = planted(40, 20)
    history = relocalize(unary, table, start="random", epochs=20).history
    assert history[-1].changed == 0
    for step in history[1:]:
        assert step.pair_scores == 2 * step.changed * 2 * unary.numel()
    assert sum(step.changed for step in history[2:]) < history[1].changed


@few_examples
@given(cases, scales, st.integers(2, 9))
def test_speculation_does_not_change_the_result(case, scale, count) -> None:  # type: ignore[no-untyped-def]
    unary, table = case
    sequential, speculative = (
        relocalize(unary, PairTable(table), alpha=2.0, alpha_scale=scale, start="random", speculation=speculation)
        for speculation in (1, count)
    )
    assert torch.equal(sequential.selection, speculative.selection)
    assert [step.changed for step in sequential.history] == [step.changed for step in speculative.history]


def test_memory_does_not_change_the_result() -> None:
    unary, table, _ = planted(30, 10)
    results = [relocalize(unary, table, k=4, memory=memory).selection for memory in (1, 10_000, 2 << 30)]
    assert all(torch.equal(result, results[0]) for result in results)


def test_integers_half_precision_and_numpy_arrays_are_accepted() -> None:
    table = torch.full((4, 4, 60, 60), 3.0)
    scores = [torch.randint(0, 9, (4, 60)), torch.randn(4, 60).half(), np.random.default_rng(0).normal(size=(4, 60))]
    for unary in scores:
        for typed_table in (table, table.half(), table.double()):
            start = np.zeros(4, dtype=np.int64)
            result = relocalize(unary, PairTable(typed_table), k=4, previous=start)
            assert result.selection.shape == (4,)


def test_one_bag_takes_its_best_proposal() -> None:
    result = relocalize([[0.0, 3.0, 1.0]], PairTable(torch.zeros(1, 1, 3, 3)))
    assert result.selection.tolist() == [1]
    assert result.converged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unary": []}, "at least one bag"),
        ({"unary": [[1.0], []]}, "bag 1: has no proposal"),
        ({"unary": [[1.0], [np.nan]]}, "bag 1: has a unary score that is not finite"),
        ({"alpha_scale": "mean"}, "alpha_scale is 'mean'"),
        ({"start": "best"}, "start is 'best'"),
        ({"start": torch.tensor([0])}, "start: must be one integer proposal index for each of the 2 bags"),
        ({"start": torch.tensor([0, 5])}, "start: bag 1 has no proposal 5"),
        ({"start": torch.tensor([0.0, 0.0])}, "start: must be one integer proposal index"),
        ({"alpha": np.nan}, "alpha is nan"),
        ({"memory": 0}, "memory 0"),
        (
            {"pairs": PairTable(torch.zeros(2, 2, 3, 3))},
            r"pair_scores.block returned shape \(1, 3, 3\), not \(1, 2, 2\)",
        ),
        ({"previous": torch.tensor([0, 1])}, "previous: bag 1 has no proposal 1"),
        ({"k": 1}, "k is 1"),
        ({"speculation": 0}, "speculation is 0"),
        ({"solver": "magic"}, "no solver 'magic'"),
        ({"pairs": PairTable(torch.full((2, 2, 2, 2), torch.nan))}, "bags 0 and 1: have a pair score"),
        ({"pairs": PairTable(torch.full((2, 2, 2, 2), torch.inf)), "start": "unary"}, "bag 0: has a pair score"),
    ],
)
def test_bad_input_names_the_bag(arguments: dict[str, object], message: str) -> None:
    call: dict[str, object] = {
        "unary": [[1.0, 2.0], [3.0]],
        "pairs": PairTable(torch.zeros(2, 2, 2, 2)),
    } | arguments
    with pytest.raises(ValueError, match=message):
        relocalize(**call)


@pytest.mark.parametrize(("bags", "k"), [(1, 2), (1, 64), (2, 64), (3, 2), (5, 4), (9, 8), (7, 3)])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_classes_smaller_than_a_mini_problem_or_with_one_bag_left_over(bags: int, k: int, alpha: float) -> None:
    """Every bag gets a proposal, and the energy is at most that of the best unary scores."""
    unary, table, _ = planted(bags, 6)
    solved = relocalize(unary, table, k=k, alpha=alpha)
    assert solved.selection.shape == (bags,)
    problem = ClassProblem(unary, table, alpha=alpha)
    assert solved.energy == pytest.approx(problem.energy(solved.selection))
    assert solved.energy <= problem.energy(unary.argmax(dim=1)) + 1e-9
    if bags == 1 or not alpha:
        assert torch.equal(solved.selection, unary.argmax(dim=1))
