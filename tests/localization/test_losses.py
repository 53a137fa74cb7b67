"""The loss is the paper's. It is linear in the label, l(x, y) = l(x, 0) - yx, so re-localization minimises the loss."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import slow_cross_entropy
from pairloc.inference import ClassProblem, PairTable
from pairloc.localization.losses import cross_entropy, mean_loss


@given(st.floats(-16, 16), st.floats(0, 1))
def test_the_loss_is_the_paper_s(x: float, y: float) -> None:
    found = float(cross_entropy(torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)))
    assert found == pytest.approx(slow_cross_entropy(x, y), abs=1e-7)  # 1 - sigmoid(16) has nine digits


def test_labels_may_be_a_mask() -> None:
    scores = torch.tensor([2.0, -1.0])
    found = cross_entropy(scores, torch.tensor([True, False])).tolist()
    assert found == pytest.approx([slow_cross_entropy(2.0, 1.0), slow_cross_entropy(-1.0, 0.0)])


@given(st.integers(0, 6), st.integers(0, 999))
def test_the_mean_loss_counts_only_what_was_drawn(size: int, seed: int) -> None:
    """Nothing drawn has no loss."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=generator, dtype=torch.float64)
    labels, counted = (torch.rand(size, generator=generator) < 0.5 for _ in range(2))
    losses = [slow_cross_entropy(float(scores[i]), float(labels[i])) for i in range(size) if counted[i]]
    expected = sum(losses) / len(losses) if losses else 0.0
    assert float(mean_loss(scores, labels, counted)) == pytest.approx(expected)


@given(st.floats(-50, 50), st.floats(0, 1))
def test_the_loss_is_linear_in_the_label(x: float, y: float) -> None:
    score, label = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    expected = cross_entropy(score, torch.zeros_like(score)) - label * score
    assert float(cross_entropy(score, label)) == pytest.approx(float(expected), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4), st.floats(0, 3), st.integers(0, 999))
def test_the_loss_changes_between_selections_as_the_energy_does(m: int, b: int, alpha: float, seed: int) -> None:
    """eq. reloc_nonvecto_form, with negative bags, whose labels are zero for every selection."""
    generator = np.random.default_rng(seed)
    negatives = 2
    unary = torch.from_numpy(generator.normal(0, 3, (m + negatives, b)))
    table = torch.from_numpy(generator.normal(0, 3, (m + negatives, m + negatives, b, b)))

    def full_loss(selection: list[int]) -> float:
        y = torch.zeros(m + negatives, b, dtype=torch.float64)
        y[torch.arange(m), torch.tensor(selection)] = 1
        total = cross_entropy(unary, y).sum()
        for i, j in itertools.permutations(range(m + negatives), 2):
            r = y[i][:, None] * y[j][None, :]
            total = total + alpha * cross_entropy(table[i, j], r).sum()
        return float(total)

    def energy(selection: list[int]) -> float:
        positive = PairTable(table[:m, :m])
        problem = ClassProblem(unary[:m], positive, alpha=alpha, alpha_scale="none")
        tracked = problem.solve(torch.tensor(selection), epochs=0).energy
        assert problem.energy(selection) == pytest.approx(tracked, abs=1e-9)
        return tracked

    first, second = (generator.integers(0, b, m).tolist() for _ in range(2))
    assert full_loss(first) - full_loss(second) == pytest.approx(energy(first) - energy(second), abs=1e-6)
