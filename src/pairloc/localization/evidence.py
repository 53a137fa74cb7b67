"""Evidence: named terms (M, B) for or against a proposal, and their combination to the unary of a class.

A term is a function of a class and its class scores (None during the warm-up). It returns None where it cannot be
computed; what sets a tag apart from other images, for instance, needs images without the tag. To add a term, write its
function and add a line to `TERMS`.

`learned` weighs the terms as it was learned on playing classes (`combination.py`). `mixed` is the paper's sum:
(1 - lambda2) psi^U_c + lambda2 psi^U, minus a penalty of large proposals, which the preset `paper` turns off.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.errors import InputError
from pairloc.localization.combination import Combination, contributions
from pairloc.localization.functions import ClassScores

if TYPE_CHECKING:
    from pairloc.localization.class_view import ClassView

OWN_CLASS = "own class"
_FLOOR = 1e-3  # probability added before a logarithm
_NEAR_IOU = 0.4  # proposals with a higher IoU are neighbours
_BORDER = 0.02  # a side this close to the border, as a fraction of the image, touches it
_MAX_LEAD = 5.0  # limit of the difference to the best neighbour
_LARGE = 0.5  # larger fractions of the image are penalised in `mixed`
_CHUNK = 256  # bags whose proposals are compared with each other at a time

Score = Callable[["ClassView", ClassScores | None], Tensor | None]


def transfer_score(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """psi^U, how much a proposal looks like an object."""
    return view.transfer_unary


def objectness(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """How sure the proposer is that the proposal is an object, in log odds."""
    return view.target.bags.objectness[view.rows]


def known_class(view: "ClassView", class_scores: ClassScores | None) -> Tensor | None:
    """How sure the proposer is of the best other class it was taught, as a logarithm: evidence against the tag."""
    known = view.known
    return None if known is None else (known.amax(dim=2) + _FLOOR).log()


def own_class(view: "ClassView", class_scores: ClassScores | None) -> Tensor | None:
    """How sure the proposer is of the known class that the tag is, as a logarithm; None for a new tag."""
    own = view.own
    return None if own is None else (own + _FLOOR).log()


def doubt(view: "ClassView", class_scores: ClassScores | None) -> Tensor | None:
    """Entropy among the known classes: an object that looks like none of them leaves the proposer in doubt."""
    known = view.known
    if known is None:
        return None
    share = known / known.sum(dim=2, keepdim=True).clamp(min=1e-9)
    return -(share * (share + 1e-9).log()).sum(dim=2)


def inside_known(view: "ClassView", class_scores: ClassScores | None) -> Tensor | None:
    """Fraction of a proposal inside a larger one, times the probability that the larger one shows a known class."""
    known = view.known
    if known is None:
        return None
    best = known.amax(dim=2)
    parts = []
    for rows in torch.arange(len(view), device=best.device).split(_CHUNK):
        boxes, valid = view.boxes[rows], view.valid[rows]
        low = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
        high = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
        area = (boxes[..., 2:] - boxes[..., :2]).prod(dim=2).clamp(min=1e-6)  # (n, B)
        covered = (high - low).clamp(min=0).prod(dim=3) / area[:, :, None]  # (n, B, B) of i by j
        larger = (area[:, None] > area[:, :, None]) & valid[:, None]
        parts.append((covered * larger * best[rows][:, None]).amax(dim=2))
    return torch.cat(parts)


def _recurrence(summary: int) -> Score:
    def term(view: "ClassView", class_scores: ClassScores | None) -> Tensor | None:
        return None if view.recurrence is None else view.recurrence[summary]

    return term


def _elsewhere(summary: int) -> Score:
    def term(view: "ClassView", class_scores: ClassScores | None) -> Tensor | None:
        return None if view.elsewhere is None else view.elsewhere[summary]

    return term


def log_area(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """Logarithm of the fraction of the image that a proposal covers."""
    return (view.target.bags.area[view.rows] + 1e-4).log()


def border(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """Number of sides that touch the border of the image."""
    sizes = torch.tensor([view.target.bags.sizes[bag] for bag in view.bags.tolist()]).to(view.boxes)  # (M, 2)
    low = view.boxes[..., :2] < _BORDER * sizes[:, None]
    high = view.boxes[..., 2:] > (1 - _BORDER) * sizes[:, None]
    return (low.sum(dim=2) + high.sum(dim=2)).to(view.boxes) * (sizes > 0).all(dim=1)[:, None]


def lead(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """psi^U minus that of the best neighbour: the tightest of several boxes around an object leads."""
    parts = []
    others = ~torch.eye(view.target.bags.size, dtype=torch.bool, device=view.boxes.device)
    for rows in torch.arange(len(view), device=view.boxes.device).split(_CHUNK):
        near = (iou(view.boxes[rows], view.boxes[rows]) > _NEAR_IOU) & others  # (n, B, B)
        unary = view.transfer_unary[rows]
        best = unary[:, None].expand_as(near).masked_fill(~near, -torch.inf).amax(dim=2)
        parts.append((unary - best).clamp(-_MAX_LEAD, _MAX_LEAD))
    return torch.cat(parts)


def company(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """Overlap with the other proposals, each weighted by the probability that it is an object."""
    parts = []
    for rows in torch.arange(len(view), device=view.boxes.device).split(_CHUNK):
        overlap = iou(view.boxes[rows], view.boxes[rows])
        likely = torch.sigmoid(view.transfer_unary[rows]) * view.valid[rows]
        parts.append((overlap @ likely[..., None])[..., 0] - likely)
    return torch.cat(parts)


def class_score(view: "ClassView", class_scores: ClassScores | None) -> Tensor | None:
    """psi^U_c, how much a proposal looks like the class."""
    return None if class_scores is None else class_scores.unary.of_class(view.class_features, view.label)


def other_tag(view: "ClassView", class_scores: ClassScores | None) -> Tensor | None:
    """The highest psi^U of the image's other tags, which claim the proposal; NaN for images with one tag."""
    if class_scores is None:
        return None
    others = view.target.tagged[view.bags].clone()
    others[:, view.label] = False
    scores = torch.nn.functional.linear(view.class_features, class_scores.unary.linear.weight)
    scores = scores + class_scores.unary.linear.bias
    others = others.to(scores.device)
    highest = scores.masked_fill(~others[:, None], -torch.inf).amax(dim=2)
    return highest.masked_fill(~others.any(dim=1)[:, None], torch.nan).detach()


@dataclass(frozen=True)
class Term:
    """A term: its function, whether it changes with the class scores, and what it is computed from."""

    score: Score
    # "pairs": other bags; "negatives": bags without the tag; "known": known classes; "own": a known class that the tag
    # is; "classes": class scores
    needs: str = ""


TERMS: dict[str, Term] = {
    "transfer score": Term(transfer_score),
    "objectness": Term(objectness),
    "known class": Term(known_class, "known"),
    OWN_CLASS: Term(own_class, "own"),
    "doubt": Term(doubt, "known"),
    "inside a known class": Term(inside_known, "known"),
    "recurrence": Term(_recurrence(0), "pairs"),
    "recurrence, mean score": Term(_recurrence(1), "pairs"),
    "recurrence, ten best": Term(_recurrence(2), "pairs"),
    "elsewhere": Term(_elsewhere(0), "negatives"),
    "elsewhere, mean score": Term(_elsewhere(1), "negatives"),
    "elsewhere, ten best": Term(_elsewhere(2), "negatives"),
    "log area": Term(log_area),
    "border": Term(border),
    "lead": Term(lead),
    "company": Term(company),
    "class score": Term(class_score, "classes"),
    "other tag": Term(other_tag, "classes"),
}


@dataclass(frozen=True)
class Terms:
    """The terms of a class that could be computed, by name."""

    names: tuple[str, ...]  # T
    table: Tensor  # (M, B, T)

    def of(self, rows: Tensor) -> "Terms":
        """Return the terms of some of the bags, `rows` (m,)."""
        return Terms(self.names, self.table[rows.to(self.table.device)])

    def column(self, name: str) -> Tensor:
        """Return one term (M, B); NaN if it could not be computed."""
        if name in self.names:
            return self.table[..., self.names.index(name)]
        return self.table.new_full(self.table.shape[:2], torch.nan)


@dataclass(frozen=True)
class Evidence:
    """The terms of a class that last for all rounds, and how terms are combined."""

    terms: Terms
    combination: Combination

    def of(self, rows: Tensor) -> "Evidence":
        """Return the evidence of some of the bags, `rows` (m,)."""
        return Evidence(self.terms.of(rows), self.combination)

    def contributions(self, terms: Terms) -> Tensor:
        """What each term adds to the unary: (M, B, T). Raises an InputError if the combination fits no terms."""
        weighing = self.combination.weighing(terms.names)
        if weighing is None:
            raise InputError("the combination of the weights fits none of this version's evidence; learn it again")
        return contributions(weighing, terms.names, terms.table)


@torch.no_grad()
def lasting_terms(view: "ClassView") -> Terms:
    """Compute the terms of a class that stay the same in every round."""
    return _computed(view, None, {name: term for name, term in TERMS.items() if term.needs != "classes"})


@torch.no_grad()
def all_terms(view: "ClassView", lasting: Terms, class_scores: ClassScores | None) -> Terms:
    """Add the terms that come from class scores to those that last."""
    new = _computed(view, class_scores, {name: term for name, term in TERMS.items() if term.needs == "classes"})
    return Terms((*lasting.names, *new.names), torch.cat([lasting.table, new.table], dim=2))


def _computed(view: "ClassView", class_scores: ClassScores | None, terms: dict[str, Term]) -> Terms:
    found = {name: term.score(view, class_scores) for name, term in terms.items()}
    present = {name: score for name, score in found.items() if score is not None}
    empty = torch.zeros(len(view), view.target.bags.size, 0, device=view.boxes.device)
    return Terms(tuple(present), torch.stack(list(present.values()), dim=2) if present else empty)


def combined(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """Combine the terms of a class to its unary: (M, B)."""
    if view.evidence is None:
        return mixed(view, class_scores)
    return view.evidence.contributions(all_terms(view, view.evidence.terms, class_scores)).sum(dim=2)


def mixed(view: "ClassView", class_scores: ClassScores | None) -> Tensor:
    """(1 - lambda2) psi^U_c + lambda2 psi^U minus the area penalty: (M, B); terms of weight zero are not computed."""
    lambda2 = 1.0 if class_scores is None else view.energy.lambda2
    penalty = view.settings.unary.area_penalty
    total = torch.zeros(len(view), view.target.bags.size, device=view.boxes.device)
    if lambda2:
        total = total + lambda2 * transfer_score(view, class_scores)
    if lambda2 < 1:
        own = class_score(view, class_scores)
        assert own is not None
        total = total + (1 - lambda2) * own
    if penalty:
        total = total - penalty * (view.target.bags.area[view.rows] - _LARGE).clamp(min=0)
    return total
