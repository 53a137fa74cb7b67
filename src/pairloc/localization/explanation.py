"""Why a box was selected: what each evidence term adds to its score, and to that of the best box elsewhere."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.localization.class_view import ClassView
from pairloc.localization.evidence import all_terms
from pairloc.localization.functions import ClassScores

BEFORE, NETWORK = "score before fine-tuning", "fine-tuned network"  # the parts of a score of `fine-tuned`
PAIRS = "match with the selected boxes"  # the part of the score that comes from pair scores
_SAME_IOU = 0.5  # a proposal that overlaps the selected one more is no alternative


@dataclass(frozen=True)
class Explanation:
    """The parts of the scores of the selected boxes of a class, and of the best other box of every image.

    The parts of a box sum to its score.
    """

    names: tuple[str, ...]  # T
    selected: Tensor  # (M, T)
    other: Tensor  # (M, T)
    alternative: Tensor  # (M,) index of the best proposal that is not the selected box; itself if there is none


@torch.no_grad()
def explain(
    view: ClassView, class_scores: tuple[ClassScores, ...], fold: Tensor, scores: Tensor, selection: Tensor
) -> Explanation | None:
    """Split the `scores` (M, B) of a class into their parts, for its `selection` (M,); None without learned evidence.

    Every bag is explained by the class scores that were not trained on it, as its `fold` (M,) says.
    """
    if view.evidence is None:
        return None
    parts, names = None, tuple[str, ...]()
    for number, own in enumerate(class_scores or (None,)):
        terms = all_terms(view, view.evidence.terms, own)
        table = view.evidence.contributions(terms)  # (M, B, T)
        held_out = (fold == number) if len(class_scores) > 1 else torch.ones(len(view), dtype=torch.bool)
        held_out = held_out.to(table.device)[:, None, None]
        parts, names = torch.where(held_out, table, torch.zeros_like(table) if parts is None else parts), terms.names
    assert parts is not None
    pairs = (scores - parts.sum(dim=2))[..., None]
    return of_parts((*names, PAIRS), torch.cat([parts, pairs], dim=2), view.boxes, scores, selection)


def of_parts(names: tuple[str, ...], parts: Tensor, boxes: Tensor, scores: Tensor, selection: Tensor) -> Explanation:
    """Explain the `selection` (M,) of a class by the `parts` (M, B, T) that its `scores` (M, B) are the sum of."""
    rows = torch.arange(len(boxes), device=scores.device)
    chosen = selection.to(scores.device)
    overlap = iou(boxes[rows, chosen][:, None], boxes)[:, 0]  # (M, B)
    elsewhere = scores.masked_fill(overlap > _SAME_IOU, -torch.inf)
    alternative = torch.where(torch.isfinite(elsewhere).any(dim=1), elsewhere.argmax(dim=1), chosen)
    selected, other = (parts[rows, index].cpu() for index in (chosen, alternative))
    return Explanation(names, selected, other, alternative.cpu())
