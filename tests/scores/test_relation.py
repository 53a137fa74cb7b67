import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pairloc.scores import RelationScores
from pairloc.scores.eager import pair_sum


def naive(relation: RelationScores, e: Tensor, f: Tensor) -> Tensor:
    """One pair, as the appendix has it: (d,), (d,) -> (classes,)."""
    both = torch.cat([e, f])
    embedded = torch.tanh(relation.tanh(both)) * torch.sigmoid(relation.gate(both)) + (e + f) / 2
    scores: Tensor = relation.score.weight @ embedded + relation.score.bias
    return scores


def naive_released(relation: RelationScores, e: Tensor, f: Tensor) -> Tensor:
    """One pair in the released variant, after training."""
    assert relation.trunk is not None
    assert relation.tanh_norm is not None
    assert relation.gate_norm is not None
    e, f = (relation.trunk(x[None])[0] for x in (e, f))
    both = torch.cat([e, f])[None]
    tanh = torch.relu(relation.tanh_norm(relation.tanh(both)))[0]
    gate = torch.relu(relation.gate_norm(relation.gate(both)))[0]
    embedded = torch.tanh(tanh) * torch.sigmoid(gate) + (e + f) / 2
    scores: Tensor = relation.score.weight @ embedded + relation.score.bias
    return scores


def network(d: int, classes: int, variant: str, seed: int) -> RelationScores:
    torch.manual_seed(seed)
    relation = RelationScores(d, classes, variant).double()  # type: ignore[arg-type]
    if variant == "released":
        relation(torch.randn(3, 2, d, dtype=torch.float64), torch.randn(3, 2, d, dtype=torch.float64))  # statistics
    return relation.eval()


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["paper", "released"]),
    st.integers(0, 99),
)
def test_all_pairs_equal_one_pair_at_a_time(
    d: int, left: int, right: int, classes: int, variant: str, seed: int
) -> None:
    relation = network(d, classes, variant, seed)
    one = naive if variant == "paper" else naive_released
    a, b = torch.randn(2, left, d, dtype=torch.float64), torch.randn(2, right, d, dtype=torch.float64)
    scores = relation(a, b)
    assert scores.shape == (2, left, right, classes)
    for n in range(2):
        for i in range(left):
            for j in range(right):
                torch.testing.assert_close(scores[n, i, j], one(relation, a[n, i], b[n, j]))
    for label in range(classes):
        projected = [relation.project(x, label) for x in (a, b)]
        torch.testing.assert_close(pair_sum(*projected), scores[..., label])


def test_the_classwise_network_with_one_class_equals_the_generic_one() -> None:
    many = network(5, 3, "paper", 0)
    one = network(5, 1, "paper", 1)
    one.load_state_dict(
        many.state_dict() | {"score.weight": many.score.weight[1:2], "score.bias": many.score.bias[1:2]}
    )
    a, b = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(2, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(one(a, b)[..., 0], many(a, b)[..., 1])


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_gradients(variant: str) -> None:
    relation = network(3, 2, variant, 0)
    relation.train(variant == "paper")
    inputs = [torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(relation, inputs)
    parameters = [p.detach().clone().requires_grad_() for p in relation.parameters()] if variant == "paper" else []
    names = [name for name, _ in relation.named_parameters()] if variant == "paper" else []

    def by_parameters(*values: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(relation, dict(zip(names, values, strict=True)), tuple(inputs))
        return result

    if parameters:
        assert torch.autograd.gradcheck(by_parameters, parameters)


def test_an_unknown_variant() -> None:
    with pytest.raises(ValueError, match="variant is 'new'"):
        RelationScores(3, variant="new")  # type: ignore[arg-type]
