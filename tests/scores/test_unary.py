import torch

from pairloc.scores import UnaryScores


def test_scores_are_linear_and_per_class() -> None:
    torch.manual_seed(0)
    unary = UnaryScores(4, 3).double()
    features = torch.randn(5, 2, 4, dtype=torch.float64)
    scores = unary(features)
    assert scores.shape == (5, 2, 3)
    for label in range(3):
        weight, bias = unary.linear.weight[label], unary.linear.bias[label]
        by_hand = torch.stack([torch.stack([(weight * e).sum() + bias for e in bag]) for bag in features])
        torch.testing.assert_close(scores[..., label], by_hand)
        torch.testing.assert_close(unary.of_class(features, label), by_hand.detach())
    assert torch.autograd.gradcheck(unary, [features.requires_grad_()])
