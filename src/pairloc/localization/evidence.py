"""Evidence: named terms (M, B) that speak for or against a proposal; the unary of a class is their weighted sum.

A term is a function of a class and of its class scores (None during the warm-up). To add one: its function, and its
line in `TERMS`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pairloc.localization.functions import ClassScores
from pairloc.settings import EnergySettings

if TYPE_CHECKING:
    from pairloc.localization.class_view import ClassView

Term = Callable[["ClassView", ClassScores | None], Tensor]
_LARGE = 0.5  # part of its image beyond which a proposal loses score: scenes recur under a tag as objects do


def class_score(view: "ClassView", own: ClassScores | None) -> Tensor:
    """psi^U_c, how much a proposal looks like the class."""
    assert own is not None
    return own.unary.of_class(view.class_features, view.label)


def transfer_score(view: "ClassView", own: ClassScores | None) -> Tensor:
    """psi^U, how much a proposal looks like an object."""
    return view.transfer_unary


def area_beyond_half(view: "ClassView", own: ClassScores | None) -> Tensor:
    """The part of its image that a proposal covers beyond one half."""
    bags = view.target.positives[view.label].to(view.target.bags.device)
    return (view.target.bags.area[bags] - _LARGE).clamp(min=0)


TERMS: dict[str, Term] = {
    "class score": class_score,
    "transfer score": transfer_score,
    "area beyond half": area_beyond_half,
}


def weights(energy: EnergySettings, area_penalty: float, *, warm_up: bool) -> dict[str, float]:
    """The weight of every term: (1 - lambda2) psi^U_c + lambda2 psi^U, less the area penalty."""
    lambda2 = 1.0 if warm_up else energy.lambda2
    return {"class score": 1 - lambda2, "transfer score": lambda2, "area beyond half": -area_penalty}


def combined(view: "ClassView", own: ClassScores | None, weight: Mapping[str, float]) -> Tensor:
    """The weighted sum of the terms: (M, B). A term of weight zero is not computed."""
    total: Tensor | None = None
    for name, share in weight.items():
        if share:
            term = share * TERMS[name](view, own)
            total = term if total is None else total + term
    if total is None:
        bags = view.target.positives[view.label]
        return torch.zeros(len(bags), view.target.bags.size, device=view.target.bags.device)
    return total
