import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pairloc.scores import RelationScores
from pairloc.scores.eager import pair_sum


def naive(relation: RelationScores, e: Tensor, f: Tensor) -> Tensor:
    """Scores of one pair, written out as in the appendix: (d,), (d,) -> (classes,)."""
    both = torch.cat([e, f])
    embedded = torch.tanh(relation.tanh(both)) * torch.sigmoid(relation.gate(both)) + (e + f) / 2
    scores: Tensor = relation.score.weight @ embedded + relation.score.bias
    return scores


def network(d: int, classes: int, seed: int) -> RelationScores:
    torch.manual_seed(seed)
    return RelationScores(d, classes).double().eval()


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_all_pairs_equal_one_pair_at_a_time(d: int, left: int, right: int, classes: int, seed: int) -> None:
    relation = network(d, classes, seed)
    a, b = torch.randn(2, left, d, dtype=torch.float64), torch.randn(2, right, d, dtype=torch.float64)
    scores = relation(a, b)
    assert scores.shape == (2, left, right, classes)
    for n in range(2):
        for i in range(left):
            for j in range(right):
                torch.testing.assert_close(scores[n, i, j], naive(relation, a[n, i], b[n, j]))
    for label in range(classes):
        projected = [relation.project(x, label) for x in (a, b)]
        torch.testing.assert_close(pair_sum(*projected), scores[..., label])


def test_the_classwise_network_with_one_class_equals_the_generic_one() -> None:
    many = network(5, 3, 0)
    one = network(5, 1, 1)
    one.load_state_dict(
        many.state_dict() | {"score.weight": many.score.weight[1:2], "score.bias": many.score.bias[1:2]}
    )
    a, b = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(one(a, b)[..., 0], many(a, b)[..., 1])


def test_gradients() -> None:
    relation = network(3, 2, 0).train()
    inputs = [torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(relation, inputs)
    names, parameters = zip(
        *((n, p.detach().clone().requires_grad_()) for n, p in relation.named_parameters()), strict=True
    )

    def by_parameters(*values: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(relation, dict(zip(names, values, strict=True)), tuple(inputs))
        return result

    assert torch.autograd.gradcheck(by_parameters, parameters)
