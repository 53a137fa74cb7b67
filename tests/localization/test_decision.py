"""The decision by expected reward: against a slow reading, and what it prefers."""

import math

import pytest
import torch

from pairloc.boxes import iou
from pairloc.localization.combination import REWARDS
from pairloc.localization.decision import expected_reward


def random_boxes(bags: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    corner = 20 * torch.rand(bags, count, 2, generator=generator)
    return torch.cat([corner, corner + 10 + 20 * torch.rand(bags, count, 2, generator=generator)], dim=2)


def test_expected_reward_is_that_of_a_loop_over_proposals() -> None:
    boxes, costs = random_boxes(300, 6), torch.randn(300, 6)
    costs[:, 5] = torch.inf
    found = expected_reward(costs, boxes)
    for m in range(0, 300, 50):
        weight = [math.exp(-float(cost)) for cost in costs[m]]
        for e in range(5):
            expected = 0.0
            for other in range(5):
                overlap = float(iou(boxes[m, e][None, None], boxes[m, other][None, None]))
                expected += weight[other] / sum(weight) * sum(overlap > t for t in REWARDS) / len(REWARDS)
            assert float(found[m, e]) == pytest.approx(expected, abs=1e-5)
        assert float(found[m, 5]) == 0


def test_a_sure_proposal_is_chosen() -> None:
    boxes, costs = random_boxes(20, 8), 100 * torch.rand(20, 8)
    costs[torch.arange(20), torch.arange(20) % 8] = -100.0
    best = expected_reward(costs, boxes).max(dim=1)
    torch.testing.assert_close(best.values, torch.ones(20))
    chosen = boxes[torch.arange(20), best.indices]
    sure = boxes[torch.arange(20), torch.arange(20) % 8]
    assert (iou(chosen[:, None], sure[:, None])[:, 0, 0] > max(REWARDS)).all()


def test_likely_proposals_that_agree_outweigh_a_likelier_one_alone() -> None:
    boxes = torch.tensor([[[0.0, 0, 10, 10], [0, 0, 10, 11], [0, 0, 11, 10], [50, 50, 60, 60]]])
    costs = -torch.tensor([[0.2, 0.2, 0.2, 0.4]]).log()
    assert int(costs.argmin()) == 3
    reward = expected_reward(costs, boxes)
    assert int(reward.argmax()) < 3 and float(reward.max()) == pytest.approx(0.6)
