"""Evidence: named terms (M, B) for or against a proposal; the unary of a class is their weighted sum.

A term is a function of a class and its class scores (None during the warm-up), with a weight. To add a term, write its
function and add a line to `TERMS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pairloc.localization.functions import ClassScores
from pairloc.settings import ClassUnarySettings

if TYPE_CHECKING:
    from pairloc.localization.class_view import ClassView

_LARGE = 0.5  # larger fractions of the image are penalised: scenes recur under a tag just as objects do


def class_score(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """psi^U_c, how much a proposal looks like the class."""
    assert class_scores is not None
    return class_scores.unary.of_class(view.class_features, view.label)


def transfer_score(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """psi^U, how much a proposal looks like an object."""
    return view.transfer_unary


def area_beyond_half(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """Fraction of the image that a proposal covers beyond one half."""
    return (view.target.bags.area[view.bags.to(view.target.bags.device)] - _LARGE).clamp(min=0)


@dataclass(frozen=True)
class Term:
    """A term, and its weight as a function of the settings and lambda2 (1 during the warm-up)."""

    score: Callable[["ClassView", ClassScores | None], Tensor]
    weight: Callable[[ClassUnarySettings, float], float]


# The sum is (1 - lambda2) psi^U_c + lambda2 psi^U, minus the area penalty.
TERMS: dict[str, Term] = {
    "class score": Term(class_score, lambda settings, lambda2: 1 - lambda2),
    "transfer score": Term(transfer_score, lambda settings, lambda2: lambda2),
    "area beyond half": Term(area_beyond_half, lambda settings, lambda2: -settings.area_penalty),
}


def combined(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """Return the weighted sum of the terms: (M, B). Terms of weight zero are not computed."""
    lambda2 = 1.0 if class_scores is None else view.energy.lambda2
    total: Tensor | None = None
    for term in TERMS.values():
        weight = term.weight(view.settings.unary, lambda2)
        if weight:
            weighted = weight * term.score(view, class_scores)
            total = weighted if total is None else total + weighted
    if total is None:
        return torch.zeros(len(view), view.target.bags.size, device=view.target.bags.device)
    return total
