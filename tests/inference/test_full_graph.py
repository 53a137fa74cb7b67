"""Mean field and block ICM on the graph of a whole class."""

import itertools

import numpy as np
import pytest
import torch

from pairloc.inference import Anchors, ClassProblem, PairTable
from pairloc.inference.full_graph import class_block_icm, class_mean_field
from pairloc.inference.planted import planted_bags


def random_problem(seed: int, bags: int, alpha: float = 1.0) -> ClassProblem:
    """Random scores; every other bag has one proposal less."""
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(bags, 4, generator=generator, dtype=torch.float64)
    unary[::2, 3] = -torch.inf
    table = torch.randn(bags, bags, 4, 4, generator=generator, dtype=torch.float64)
    return ClassProblem(unary, PairTable(table), alpha=alpha)


@pytest.mark.parametrize("seed", range(5))
def test_block_icm_never_raises_the_energy_it_reports(seed: int) -> None:
    problem = random_problem(seed, 7)
    history = class_block_icm(problem, problem.unary.argmax(dim=1), epochs=20)
    for step in history:
        assert step.energy == pytest.approx(problem.energy(step.selection))
    assert all(after.energy <= before.energy + 1e-9 for before, after in itertools.pairwise(history))
    assert history[-1].changed == 0


@pytest.mark.parametrize("seed", range(10))
def test_block_icm_is_exact_for_two_bags(seed: int) -> None:
    problem = random_problem(seed, 2)
    last = class_block_icm(problem, problem.unary.argmax(dim=1))[-1]
    energies = [problem.energy([i, j]) for i, j in itertools.product(range(3), range(4))]
    assert last.energy == pytest.approx(min(energies))


def test_without_pairs_both_select_the_best_unary_score() -> None:
    problem = random_problem(0, 5, alpha=0.0)
    best = problem.unary.argmax(dim=1)
    assert torch.equal(class_mean_field(problem)[-1].selection, best)
    assert torch.equal(class_block_icm(problem, torch.zeros(5, dtype=torch.int64))[-1].selection, best)


def test_a_bag_alone_selects_its_best_proposal() -> None:
    problem = random_problem(1, 1)
    best = problem.unary.argmax(dim=1)
    assert torch.equal(class_mean_field(problem)[-1].selection, best)
    assert torch.equal(class_block_icm(problem, best)[-1].selection, best)


def test_mean_field_finds_a_planted_object() -> None:
    unary, features, truth = planted_bags(8, 20, np.random.default_rng(0), spread=0.2)
    similarity = torch.from_numpy(np.einsum("ibd,jcd->ijbc", features, features)) * 4 - 2
    problem = ClassProblem(torch.from_numpy(unary), PairTable(similarity), alpha=4.0)
    history = class_mean_field(problem)
    assert history[-1].energy == pytest.approx(problem.energy(history[-1].selection))
    assert history[-1].energy <= problem.energy(truth) + 1e-6


def test_mean_field_counts_anchors() -> None:
    """A bag whose only comparison is an anchor takes the proposal that resembles it."""
    table = torch.zeros(2, 2, 3, 3)
    table[0, 1, 2, 0] = 5.0
    anchors = Anchors.of(torch.tensor([1]), torch.tensor([0]))
    problem = ClassProblem(torch.zeros(1, 3), PairTable(table), anchors, bags=torch.tensor([0]))
    assert class_mean_field(problem)[-1].selection.tolist() == [2]
