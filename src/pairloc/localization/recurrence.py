"""Recurrence: how well the proposals of a class match something in other bags, with or without the tag.

What is tagged recurs in the bags with the tag and not in those without it. Both are measured on a fixed number of
reference bags, and in each of them on its most object-like proposals, so the cost grows with the number of bags and not
with its square.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pairloc.localization.functions import TransferScores
from pairloc.localization.target import Target
from pairloc.scores import PairScorer

_BAGS, _PROPOSALS = 200, 10  # reference bags, and proposals of each
_BEST = 10  # number of reference bags with the best matches
_CHUNK = 32  # bags compared at a time
_FLOOR = 1e-4  # probability added before a logarithm


@dataclass(frozen=True)
class References:
    """The most object-like proposals of R reference bags, packed into bags of B proposals for the pair scores."""

    bags: Tensor  # (R,)
    packed: Tensor  # (P, B, d) their R k features, padded with zeros
    valid: Tensor  # (R, k)

    @classmethod
    @torch.no_grad()
    def draw(cls, target: Target, transfer: TransferScores, bags: Tensor, seed: int) -> "References":
        """Draw reference bags from some bags (n,)."""
        generator = torch.Generator().manual_seed(seed)
        chosen = bags[torch.randperm(len(bags), generator=generator)[:_BAGS]]
        features = target.bags.features(chosen)  # (R, B, d)
        valid = target.bags.valid[chosen.to(target.bags.device)]
        unary = transfer.unary.of_class(features).masked_fill(~valid, -torch.inf)
        best = unary.topk(min(_PROPOSALS, unary.shape[1]), dim=1)
        likely = features.gather(1, best.indices[..., None].expand(-1, -1, features.shape[2])).flatten(0, 1)
        size = target.bags.size
        packed = likely.new_zeros(-(-len(likely) // size) * size, likely.shape[1])
        packed[: len(likely)] = likely
        return cls(chosen, packed.view(-1, size, likely.shape[1]), best.values > -torch.inf)


@torch.no_grad()
def recurrence(target: Target, transfer: TransferScores, bags: Tensor, references: References) -> Tensor:
    """Compare the proposals of bags (M,) with reference bags: (3, M, B).

    A proposal matches a reference bag as well as the best of the bag's proposals. The three summaries are the log of
    the mean probability of a match, the mean score of a match, and the log of the mean of the ten best probabilities.
    """
    summaries = [
        _summaries(_matches(target, transfer, chunk, references), chunk[:, None] != references.bags)
        for chunk in torch.split(bags, _CHUNK)
    ]
    return torch.cat(summaries, dim=1)


def _matches(target: Target, transfer: TransferScores, bags: Tensor, references: References) -> Tensor:
    """Score of the best proposal of every reference bag, for the proposals of bags (n,): (n, B, R)."""
    features = torch.cat([target.bags.features(bags), references.packed])
    scorer = PairScorer(transfer.relation, features)
    rows = torch.arange(len(features), device=features.device)
    scores = scorer.table(rows[: len(bags)], rows[len(bags) :]) / 2  # the mean of both directions: (n, B, P B)
    count, k = references.valid.shape
    scores = scores[..., : count * k].unflatten(2, (count, k))
    best: Tensor = scores.masked_fill(~references.valid.to(scores.device), -torch.inf).amax(dim=3)
    return best


def _summaries(best: Tensor, other: Tensor) -> Tensor:
    """Summarise the matches (n, B, R) with the reference bags; `other` (n, R) excludes the bag itself: (3, n, B)."""
    other = other.to(best.device)[:, None] & torch.isfinite(best)
    count = other.sum(dim=2).clamp(min=1)
    probability = torch.sigmoid(best) * other
    mean = (probability.sum(dim=2) / count + _FLOOR).log()
    score = torch.where(other, best, 0.0).sum(dim=2) / count
    top = (probability.topk(min(_BEST, best.shape[2]), dim=2).values.mean(dim=2) + _FLOOR).log()
    return torch.stack([mean, score, top])
