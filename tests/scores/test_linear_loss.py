"""The paper's identity l(x, y) = l(x, 0) - yx and its consequence: re-localization minimises the loss itself."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits

from pairloc.inference import ClassProblem, PairTable


def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sigmoid cross-entropy (eq. sig_cross_entropy)."""
    return binary_cross_entropy_with_logits(x, y, reduction="none")


@given(st.floats(-50, 50), st.floats(0, 1))
def test_the_loss_is_linear_in_the_label(x: float, y: float) -> None:
    score, label = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    expected = loss(score, torch.zeros_like(score)) - label * score
    assert float(loss(score, label)) == pytest.approx(float(expected), abs=1e-9)


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
        total = loss(unary, y).sum()
        for i, j in itertools.permutations(range(m + negatives), 2):
            r = y[i][:, None] * y[j][None, :]
            total = total + alpha * loss(table[i, j], r).sum()
        return float(total)

    def energy(selection: list[int]) -> float:
        positive = PairTable(table[:m, :m])
        problem = ClassProblem(unary[:m], positive, alpha=alpha, alpha_scale="none")
        tracked = problem.solve(torch.tensor(selection), epochs=0).energy
        assert problem.energy(selection) == pytest.approx(tracked, abs=1e-9)
        return tracked

    first, second = (generator.integers(0, b, m).tolist() for _ in range(2))
    assert full_loss(first) - full_loss(second) == pytest.approx(energy(first) - energy(second), abs=1e-6)
