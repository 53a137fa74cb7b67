"""Cosine pair scores against single pairs written out, and the invariances of a cosine."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pairloc.scores import CosineScores


def random_scores(d: int, classes: int, seed: int) -> CosineScores:
    torch.manual_seed(seed)
    scores = CosineScores(d, classes).double()
    for parameter in scores.parameters():
        torch.nn.init.normal_(parameter)
    return scores


def naive(scores: CosineScores, e: Tensor, f: Tensor) -> Tensor:
    """Scores (classes,) of one pair, written out."""
    z, other = scores.embedding.weight @ e, scores.embedding.weight @ f
    product = z * other / (z.norm() * other.norm())
    expected: Tensor = scores.score.weight @ product + scores.score.bias
    return expected


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 7), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_all_pairs_equal_one_pair_at_a_time(d: int, left: int, right: int, classes: int, seed: int) -> None:
    scores = random_scores(d, classes, seed)
    a, b = torch.randn(2, left, d, dtype=torch.float64), torch.randn(2, right, d, dtype=torch.float64)
    all_pairs = scores(a, b)
    assert all_pairs.shape == (2, left, right, classes)
    for n in range(2):
        for i in range(left):
            for j in range(right):
                torch.testing.assert_close(all_pairs[n, i, j], naive(scores, a[n, i], b[n, j]))
    labels = torch.tensor([0, classes - 1])
    of_labels = scores.of_classes(a, b, labels)
    torch.testing.assert_close(of_labels, torch.stack([all_pairs[0, ..., 0], all_pairs[1, ..., classes - 1]]))


def test_order_and_length_do_not_matter() -> None:
    scores = random_scores(5, 2, 0)
    a, b = torch.randn(1, 3, 5, dtype=torch.float64), torch.randn(1, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(scores(a, b), scores(b, a).transpose(1, 2))
    torch.testing.assert_close(scores(3 * a, 0.2 * b), scores(a, b))


def test_the_initial_score_is_the_cosine_of_the_features() -> None:
    torch.manual_seed(0)
    scores = CosineScores(6).double()
    a, b = torch.randn(1, 3, 6, dtype=torch.float64), torch.randn(1, 2, 6, dtype=torch.float64)
    cosine = torch.nn.functional.cosine_similarity(a[:, :, None], b[:, None], dim=-1)
    rescaled = (scores(a, b)[..., 0] - scores.score.bias) / scores.score.weight[0, 0]
    torch.testing.assert_close(rescaled, cosine, atol=1e-6, rtol=1e-6)


def test_a_zero_feature_vector_scores_the_bias() -> None:
    scores = random_scores(4, 1, 1)
    result = scores(torch.zeros(1, 1, 4, dtype=torch.float64), torch.randn(1, 3, 4, dtype=torch.float64))
    torch.testing.assert_close(result[0, 0, :, 0], scores.score.bias.expand(3))


@pytest.mark.parametrize("classes", [1, 3])
def test_gradients(classes: int) -> None:
    scores = random_scores(3, classes, 0)
    inputs = [torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(scores, inputs)
