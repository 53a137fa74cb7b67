"""The decision for a box once all proposals have probabilities: the highest expected reward, not the likeliest one.

Learned evidence gives log odds, so the proposals of a bag have probabilities p. A box may be right because it overlaps
the right proposal, and what is rewarded is overlap:

    reward(e) = sum over e' of p(e') mean over the thresholds t of [IoU(e, e') > t]

The weights of evidence are learned to maximise the same reward. Many likely proposals that agree outweigh a single one.
"""

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.localization.combination import REWARDS

_CHUNK = 256  # bags whose proposals are compared with each other at a time


def expected_reward(costs: Tensor, boxes: Tensor) -> Tensor:
    """Expected reward (M, B) of proposals whose `costs` (M, B) are negative log odds; 0 where a cost is infinite."""
    rewards = []
    for cost, box in zip(costs.split(_CHUNK), boxes.split(_CHUNK), strict=True):
        probability = torch.softmax(-cost, dim=1)
        overlap = iou(box, box)  # (m, B, B)
        near = torch.stack([overlap > threshold for threshold in REWARDS]).to(probability.dtype).mean(dim=0)
        rewards.append(torch.bmm(near, probability[..., None])[..., 0].masked_fill(cost == torch.inf, 0))
    return torch.cat(rewards)
