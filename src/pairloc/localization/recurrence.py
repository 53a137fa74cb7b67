"""Recurrence: how well the proposals of a class match something in other bags, with or without the tag.

What is tagged recurs in the bags with the tag and not in those without it. Both are measured on a fixed number of
reference bags, and in each of them on its most object-like proposals, so the cost grows with the number of bags and not
with its square.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pairloc.localization.functions import TransferScores
from pairloc.localization.target import Target
from pairloc.scores import PairScorer

_REFERENCES = (200, 10)  # reference bags, and proposals of each
_FEWER = {"relation": (75, 4)}  # for a pair score that costs much more than a matrix product
_BEST = 10  # number of reference bags with the best matches
_CHUNK = 128  # bags compared at a time
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
        count, k = _FEWER.get(transfer.settings.pairs.kind, _REFERENCES)
        generator = torch.Generator().manual_seed(seed)
        chosen = bags[torch.randperm(len(bags), generator=generator)[:count]]
        features = target.bags.features(chosen)  # (R, B, d)
        valid = target.bags.valid[chosen.to(target.bags.device)]
        unary = transfer.unary.of_class(features).masked_fill(~valid, -torch.inf)
        best = unary.topk(min(k, unary.shape[1]), dim=1)
        likely = features.gather(1, best.indices[..., None].expand(-1, -1, features.shape[2])).flatten(0, 1)
        size = target.bags.size
        packed = likely.new_zeros(-(-len(likely) // size) * size, likely.shape[1])
        packed[: len(likely)] = likely
        return cls(chosen, packed.view(-1, size, likely.shape[1]), best.values > -torch.inf)


@torch.no_grad()
def recurrence(
    target: Target, transfer: TransferScores, bags: Tensor, sets: Mapping[str, References]
) -> dict[str, Tensor]:
    """Compare the proposals of bags (M,) with named sets of reference bags: (3, M, B) for every set.

    A proposal matches a reference bag as well as the best of the bag's proposals. The three summaries are the log of
    the mean probability of a match, the mean score of a match, and the log of the mean of the ten best probabilities.
    """
    chunks = []
    for chunk in torch.split(bags, _CHUNK):
        features = [target.bags.features(chunk), *(references.packed for references in sets.values())]
        scorer = PairScorer(transfer.relation, torch.cat(features))
        rows = torch.arange(sum(map(len, features)), device=features[0].device)
        left, *right = rows.split(list(map(len, features)))
        chunks.append(
            [
                _summaries(_matches(scorer, left, row, references), chunk[:, None] != references.bags)
                for row, references in zip(right, sets.values(), strict=True)
            ]
        )
    return {name: torch.cat(parts, dim=1) for name, parts in zip(sets, zip(*chunks, strict=True), strict=True)}


def _matches(scorer: PairScorer, bags: Tensor, packed: Tensor, references: References) -> Tensor:
    """Score of the best proposal of every reference bag, for the proposals of bags (n,): (n, B, R).

    `packed` (P,) are the bags of the scorer that hold the references.
    """
    scores = scorer.table(bags, packed) / 2  # the mean of both directions: (n, B, P B)
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
