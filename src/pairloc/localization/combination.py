"""The combination: how much each evidence term counts, learned on playing classes.

The score of a proposal is a weighted sum of its standardised terms, in log odds within its bag. The weight of a term
depends on the other terms: what a known class means for a small box is not what it means for a large one.

    P(proposal i is the right one) = softmax_i (w + A z_i)^T z_i,    z = (terms - mean) / std

The weights w and the symmetric matrix A of products are a conditional logit: they maximise the expected reward of a
proposal drawn from this distribution, which is one half for an IoU with the object above 0.5 and one half for an IoU
above 0.7. Every playing class counts equally. Few playing classes teach too little about products (A = 0).
A term can be missing (the only tag has no bags without it; nothing was re-trained yet), so there is one set of weights
for every pattern of terms that occurs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from pairloc.io import read_model, write_json

FILE = "combination.json"
REWARDS = (0.5, 0.7)  # IoU thresholds, each of which earns an equal share of the reward
_LIMIT = 3.5  # standardised terms are clipped to this, since products grow fast outside of what was learned
_DECAY = 1e-2  # of the squared weights
MIN_CLASSES = 30  # with fewer playing classes products of terms are not learned
_ITERATIONS = 100
_FLOOR = 1e-9  # reward of a wrong proposal, so that its logarithm is finite


@dataclass(frozen=True)
class Example:
    """The bags of one playing class: terms (M, B, T), NaN where missing, and the overlap (M, B) with its objects.

    Padding and proposals that may not be selected have an overlap of minus one.
    """

    terms: Tensor
    overlap: Tensor


class Weighing(BaseModel):
    """Weights of the terms that are available together: (mean, standard deviation, weight) of each by name.

    `products` has the weights of products of terms: row i (i + 1 numbers) those of term i with the terms up to itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    terms: dict[str, tuple[float, Annotated[float, Field(gt=0)], float]] = Field(min_length=1)
    products: tuple[tuple[float, ...], ...] = ()

    @model_validator(mode="after")
    def _is_triangle(self) -> "Weighing":
        lengths = list(map(len, self.products))
        if self.products and lengths != list(range(1, len(self.terms) + 1)):
            raise ValueError("products is not a triangle with a row for every term")
        return self

    def weights(self, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The weights of named terms: mean, standard deviation and w (3, T), and A (T, T); zero where there is none."""
        rows = torch.tensor([self.terms.get(name, (0.0, 1.0, 0.0)) for name in names]).T
        number = {name: index for index, name in enumerate(self.terms)}
        full = torch.zeros(len(number), len(number))
        for i, row in enumerate(self.products):
            full[i, : i + 1] = torch.tensor(row)
        matrix = torch.zeros(len(names), len(names))
        place = [index for index, name in enumerate(names) if name in number]
        own = [number[names[index]] for index in place]
        symmetric = (full + full.T) / 2
        matrix[torch.tensor(place)[:, None], place] = symmetric[torch.tensor(own)[:, None], own]
        return rows, matrix


class Combination(BaseModel):
    """Weighings for all patterns of available terms, as they were learned on playing classes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    learned_on: str  # the playing classes, in words
    alpha: float = Field(default=1.0, ge=0)  # factor of the weight of pair scores, which recurrence already counts
    weighings: tuple[Weighing, ...] = Field(min_length=1)

    def weighing(self, available: Sequence[str]) -> Weighing | None:
        """Return the weighing of the most terms among those that are available; None if none fits."""
        fitting = [entry for entry in self.weighings if set(entry.terms) <= set(available)]
        return max(fitting, key=lambda entry: len(entry.terms)) if fitting else None

    def weighs(self, name: str) -> bool:
        """Return whether a term has a weight, alone or with others."""
        return any(name in entry.terms for entry in self.weighings)

    def save(self, folder: Path) -> None:
        """Write the combination into a folder."""
        write_json(folder / FILE, self.model_dump(), indent=1)

    @classmethod
    def load(cls, folder: Path) -> "Combination | None":
        """Read what `save` wrote; None if there is no file. Raises an InputError if it is damaged."""
        return read_model(folder / FILE, cls) if (folder / FILE).is_file() else None


def standardised(terms: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Terms (..., T) in standard deviations from their mean; missing ones (NaN) are zero."""
    return torch.nan_to_num((terms - mean) / std, nan=0.0).clamp(-_LIMIT, _LIMIT)


def contributions(weighing: Weighing, names: Sequence[str], terms: Tensor) -> Tensor:
    """What each of the named terms (..., T) adds to the score: (..., T); zero for a term without weight."""
    rows, products = (part.to(terms) for part in weighing.weights(names))
    mean, std, weight = rows
    z = standardised(terms, mean, std)
    parts: Tensor = (weight + z @ products) * z
    return parts


def fit_weighing(examples: Sequence[Example], names: Sequence[str], *, products: bool = False) -> Weighing | None:
    """Fit the weights of the named terms (T) to the bags of playing classes; None if no proposal is ever right.

    With `products`, the weights of products of two terms are fitted too.
    """
    rewarded = [
        Example(example.terms[right], example.overlap[right])
        for example in examples
        if (right := (example.overlap > min(REWARDS)).any(dim=1)).any()
    ]
    if not rewarded:
        return None
    real = torch.cat([example.terms[example.overlap >= 0] for example in examples])  # (n, T)
    mean = real.nanmean(dim=0).nan_to_num()
    std = (real - mean).pow(2).nanmean(dim=0).sqrt().nan_to_num().clamp(min=1e-6)
    z = torch.cat([standardised(example.terms, mean, std) for example in rewarded])  # (N, B, T)
    overlap = torch.cat([example.overlap for example in rewarded])
    reward = torch.stack([overlap > threshold for threshold in REWARDS]).float().mean(dim=0).clamp(min=_FLOOR).log()
    of_bag = torch.cat([torch.full((len(example.terms),), 1 / len(example.terms)) for example in rewarded]).to(z)
    of_bag = of_bag / of_bag.sum()
    count = len(names)
    low = torch.tril_indices(count, count, device=z.device)  # the T (T + 1) / 2 products
    free = torch.zeros(count + (low.shape[1] if products else 0), device=z.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def triangle() -> Tensor:  # halved, so that products are decayed more than the terms themselves
        return z.new_zeros(count, count).index_put((low[0], low[1]), free[count:] / 2)

    def loss() -> Tensor:
        optimizer.zero_grad()
        weight = free[:count] + (z @ triangle() if products else 0.0)  # (N, B, T)
        scores = (weight * z).sum(dim=2).masked_fill(overlap < 0, -torch.inf)
        expected = torch.logsumexp(torch.log_softmax(scores, dim=1) + reward, dim=1)  # log of the expected reward
        total = -(of_bag * expected).sum() + _DECAY * free.pow(2).sum()
        total.backward()
        return total

    optimizer.step(loss)
    with torch.no_grad():
        weights = free[:count].tolist()
        rows = [row[: i + 1] for i, row in enumerate(triangle().tolist())] if products else []
    columns = zip(mean.tolist(), std.tolist(), weights, strict=True)
    rounded = dict(zip(names, (tuple(map(_rounded, column)) for column in columns), strict=True))
    return Weighing.model_validate({"terms": rounded, "products": [list(map(_rounded, row)) for row in rows]})


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
