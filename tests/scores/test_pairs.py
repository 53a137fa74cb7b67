"""Every backend against a loop over single pairs in double precision."""

import copy
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pairloc.inference import ClassProblem
from pairloc.scores import CosineScores, MixedPairs, PairScorer, RelationScores

BACKENDS = ["eager", "triton", *(["compiled"] if shutil.which("g++") else [])]


def random_scores(
    m: int, b: int, d: int, seed: int = 0, classes: int = 1, variant: str = "relation"
) -> tuple[RelationScores | CosineScores, Tensor]:
    torch.manual_seed(seed)
    if variant == "cosine":
        cosine = CosineScores(d, classes)
        torch.nn.init.normal_(cosine.score.weight)
        return cosine.eval(), torch.randn(m, b, d)
    return RelationScores(d, classes).eval(), torch.randn(m, b, d)


def slow_table(relation: RelationScores | CosineScores, features: Tensor, label: int) -> Tensor:
    """Both directions of all pairs of all bags, in double precision, one pair at a time: (M, M, B, B)."""
    network = copy.deepcopy(relation).double()
    e = features.double()
    m, b, _ = e.shape
    table = torch.zeros(m, m, b, b, dtype=torch.float64)
    for i, j, x, y in np.ndindex(m, m, b, b):
        one, other = e[i, x][None, None], e[j, y][None, None]
        table[i, j, x, y] = (network(one, other) + network(other, one))[0, 0, 0, label]
    return table.detach()


SHAPES = [
    (2, 1, 1, "relation"),
    (3, 5, 7, "relation"),
    (2, 17, 3, "relation"),
    (2, 3, 33, "relation"),
    (3, 4, 5, "cosine"),
]
# Compiling takes ten seconds per shape.
CASES = [(backend, *shape) for backend in BACKENDS for shape in (SHAPES[1:2] if backend == "compiled" else SHAPES)]


@pytest.mark.parametrize(("backend", "m", "b", "d", "variant"), CASES)
@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_blocks_and_sums_equal_the_loop(backend: str, m: int, b: int, d: int, variant: str, memory: int) -> None:
    relation, features = random_scores(m, b, d, classes=2, variant=variant)
    table = slow_table(relation, features, label=1)
    scorer = PairScorer(relation, features, label=1, backend=backend, memory=memory)  # type: ignore[arg-type]
    left, right = torch.tensor([0, 1, 0]), torch.tensor([1, 0, m - 1])
    torch.testing.assert_close(scorer.block(left, right).double(), table[left, right], atol=2e-5, rtol=1e-5)
    some, others = torch.tensor([1, 0]), torch.tensor([m - 1, 0, 1])
    every = table[some][:, others].transpose(1, 2).flatten(2)  # (2, B, 3 B)
    torch.testing.assert_close(scorer.table(some, others).double(), every, atol=2e-5, rtol=1e-5)
    generator = torch.Generator().manual_seed(1)
    chosen_bags = torch.tensor([0, m - 1, 1, 1])
    chosen = torch.randint(0, b, (4,), generator=generator)
    weights = torch.randn(4, generator=generator)
    expected = torch.zeros(m, b, dtype=torch.float64)
    for bag in range(m):
        for other, pick, weight in zip(chosen_bags, chosen, weights, strict=True):
            if other != bag:
                expected[bag] += weight.double() * table[bag, other, :, pick]
    result = scorer.against(torch.arange(m), chosen_bags, chosen, weights)
    torch.testing.assert_close(result.double(), expected, atol=1e-4, rtol=1e-5)
    columns = torch.stack([weights, torch.zeros(4), -2 * weights], dim=1)  # (m, g)
    result = scorer.against(torch.arange(m), chosen_bags, chosen, columns)
    expected_sums = torch.stack([expected, 0 * expected, -2 * expected])
    torch.testing.assert_close(result.double(), expected_sums, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "triton"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 9), st.integers(0, 99))
def test_random_shapes(backend: str, m: int, b: int, d: int, seed: int) -> None:
    relation, features = random_scores(m, min(b, 6), d, seed)
    scorer = PairScorer(relation, features, backend=backend)  # type: ignore[arg-type]
    table = slow_table(relation, features, 0)
    left, right = torch.tensor([0, m - 1]), torch.tensor([m - 1, 0])
    torch.testing.assert_close(scorer.block(left, right).double(), table[left, right], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("backend", "variant"), [("eager", "relation"), ("triton", "relation"), ("eager", "cosine")])
def test_inputs_may_be_non_contiguous_or_empty(backend: str, variant: str) -> None:
    relation, features = random_scores(4, 6, 5, variant=variant)
    non_contiguous = features.permute(1, 0, 2).contiguous().permute(1, 0, 2)
    reference = PairScorer(relation, features, backend="eager")
    scorer = PairScorer(relation, non_contiguous, backend=backend)  # type: ignore[arg-type]
    bags = torch.arange(8)[::2] // 2
    reverse = torch.tensor([3, 1, 2, 0])
    torch.testing.assert_close(scorer.block(bags, reverse), reference.block(bags, reverse), atol=1e-5, rtol=1e-5)
    empty = torch.zeros(0, dtype=torch.long)
    assert scorer.block(empty, empty).shape == (0, 6, 6)
    assert (scorer.against(bags, empty, empty, torch.zeros(0)) == 0).all()


@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_padding_of_smaller_bags_is_never_chosen(backend: str) -> None:
    relation, features = random_scores(6, 5, 4)
    sizes = torch.tensor([5, 1, 3, 4, 2, 5])
    missing = torch.arange(5) >= sizes[:, None]
    unary = torch.randn(6, 5).masked_fill(missing, -torch.inf)
    scorer = PairScorer(relation, features.masked_fill(missing[..., None], 0.0), backend=backend)  # type: ignore[arg-type]
    result = ClassProblem(unary, scorer).solve(k=3)
    assert (result.selection < sizes).all()
    again = ClassProblem(unary, PairScorer(relation, features, backend="eager")).solve(k=3)
    assert torch.equal(result.selection, again.selection)


def test_mixing_with_lambda_zero_or_one_returns_class_or_transfer_scores() -> None:
    relation, features = random_scores(3, 4, 5)
    transfer_relation, transfer_features = random_scores(3, 4, 8, seed=1)  # features of another network
    class_scores = PairScorer(relation, features)
    transfer_scores = PairScorer(transfer_relation, transfer_features)
    left, right = torch.tensor([0, 1]), torch.tensor([2, 0])
    arguments = (torch.arange(3), torch.tensor([1, 2]), torch.tensor([0, 3]), torch.tensor([1.0, -2.0]))
    for lambda1, expected in ((0.0, class_scores), (1.0, transfer_scores)):
        mixed = MixedPairs(class_scores, transfer_scores, lambda1)
        assert torch.equal(mixed.block(left, right), expected.block(left, right))
        assert torch.equal(mixed.against(*arguments), expected.against(*arguments))
    mixed = MixedPairs(class_scores, transfer_scores, 0.25)
    torch.testing.assert_close(
        mixed.block(left, right), 0.75 * class_scores.block(left, right) + 0.25 * transfer_scores.block(left, right)
    )
    torch.testing.assert_close(
        mixed.against(*arguments), 0.75 * class_scores.against(*arguments) + 0.25 * transfer_scores.against(*arguments)
    )
    assert torch.equal(MixedPairs(None, transfer_scores, 1.0).block(left, right), transfer_scores.block(left, right))


def test_bad_calls() -> None:
    relation, features = random_scores(2, 2, 3)
    with pytest.raises(ValueError, match="no backend 'fast'; known are auto, eager"):
        PairScorer(relation, features, backend="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not \\(bags, proposals, d\\)"):
        PairScorer(relation, features[0])
    with pytest.raises(ValueError, match="features have d=2, but the pair function needs d=3"):
        PairScorer(relation, features[..., :2])
    with pytest.raises(ValueError, match="label is 1, but the pair function has 1 classes, numbered from 0"):
        PairScorer(relation, features, label=1)
    with pytest.raises(ValueError, match=r"has torch.float16 weights; convert it to float32"):
        PairScorer(RelationScores(3).half(), features)
    with pytest.raises(ValueError, match="lambda1 is 2"):
        MixedPairs(None, None, 2)
    with pytest.raises(ValueError, match=r"lambda1 is 0.5, but the class or transfer scores that it needs are None"):
        MixedPairs(None, PairScorer(relation, features), 0.5)
