"""Deselaers et al. (2010): localization while learning appearance, on a fully connected graph of the images of a class.

The energy of a selection sums unary cues (objectness learned on the source, and after the first round the appearance
and the shape learned from the selection) and pair cues (similarity of appearance and of shape) of all pairs of images.
Rounds alternate between selecting and adapting to the class: its appearance, its shape and the weights of the cues.

Replaced: several hand-made descriptors by the features of the bags, tree-reweighted message passing on the whole graph
by mini-problems and ICM, the search for the generic weights of the cues by settings. Weights of images are left out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.inference.class_problem import ClassProblem
from pairloc.localization.alternate import Log, State, silent
from pairloc.localization.baselines.half_steps import HalfSteps
from pairloc.localization.baselines.mi_svm import train_svm
from pairloc.localization.functions import TransferScores
from pairloc.localization.logistic import fit_logistic
from pairloc.localization.outcome import Outcome
from pairloc.localization.target import Target
from pairloc.settings import BoxSettings, DeselaersSettings

_SELECTED_IOU = 0.5  # a proposal that overlaps the selected box by this shows the object, for the weights of the cues
_DECAY = 1e-2


class CuePairs:
    """Pair scores appearance * cos(e, e') - shape * (a - a')^2, with a the logarithm of the aspect ratio.

    Both are inner products of one vector per proposal, so sums over chosen proposals are matrix products.
    """

    def __init__(self, features: Tensor, aspect: Tensor, appearance: float, shape: float) -> None:
        direction = appearance**0.5 * torch.nn.functional.normalize(features, dim=-1)  # (M, B, d)
        one = torch.ones_like(aspect)
        left = torch.stack([-(aspect**2), 2 * aspect, -one], dim=-1)
        right = torch.stack([one, aspect, aspect**2], dim=-1)
        self.left = torch.cat([direction, shape * left], dim=-1)  # (M, B, d + 3)
        self.right = torch.cat([direction, right], dim=-1)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairScores`; the score is symmetric, so both directions are equal."""
        return 2 * self.left[left] @ self.right[right].transpose(1, 2)

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairScores`."""
        columns = (weights[:, None] if weights.ndim == 1 else weights).to(self.left.dtype)  # (m, g)
        other = self.right[chosen_bags, chosen]  # (m, d + 3)
        different = (bags[:, None] != chosen_bags).to(columns.dtype)  # (n, m)
        sums = torch.stack([(different * column) @ other for column in columns.T])  # (g, n, d + 3)
        scores = 2 * torch.einsum("nbd,gnd->gnb", self.left[bags], sums)
        return scores.reshape(*weights.shape[1:], *scores.shape[1:])


@dataclass(frozen=True)
class Cues:
    """The cues of the proposals of a class, (M, B) each, and the features that pairs are compared by."""

    unary: dict[str, Tensor]
    features: Tensor  # (M, B, d)
    aspect: Tensor  # (M, B)

    def problem(self, weights: dict[str, float], valid: Tensor) -> ClassProblem:
        """The graph of all bags of the class; pair cues are averaged over the other bags."""
        unary = torch.zeros_like(self.aspect)
        for name, cue in self.unary.items():
            unary = unary + weights[name] * cue
        pairs = CuePairs(self.features, self.aspect, weights["similar appearance"], weights["similar shape"])
        return ClassProblem(unary.masked_fill(~valid, -torch.inf), pairs, alpha=0.5)  # both directions are summed


def deselaers(target: Target, transfer: TransferScores, settings: DeselaersSettings, log: Log = silent) -> Outcome:
    """Alternate between selecting boxes and adapting the cues to the class; boxes are not refined.

    Of the transfer scores only the unary score is used, as objectness.
    """
    generic = {
        "objectness": settings.objectness,
        "appearance": settings.appearance,
        "shape": settings.shape,
        "similar appearance": settings.similar_appearance,
        "similar shape": settings.similar_shape,
    }
    steps = HalfSteps()
    solved = [
        _solve_class(target, transfer, label, generic, settings, steps) if len(bags) else _empty(target)
        for label, bags in enumerate(target.positives)
    ]
    selection, scores = zip(*solved, strict=True)
    log(f"{sum(map(len, selection))} boxes after {settings.rounds} rounds of adapting")
    gaps = tuple(torch.zeros(len(chosen), dtype=torch.float64) for chosen in selection)
    confidence = tuple(
        torch.sigmoid(table.gather(1, chosen.to(table.device)[:, None])[:, 0]).double().cpu()
        for table, chosen in zip(scores, selection, strict=True)
    )
    state = State(selection, gaps, torch.zeros(target.bags.count, dtype=torch.int64), history=steps.history())
    return Outcome(state, scores, gaps, confidence, BoxSettings(voting_iou=0.0))


def _empty(target: Target) -> tuple[Tensor, Tensor]:
    return torch.zeros(0, dtype=torch.int64), torch.zeros(0, target.bags.size)


def _solve_class(
    target: Target,
    transfer: TransferScores,
    label: int,
    generic: dict[str, float],
    settings: DeselaersSettings,
    steps: HalfSteps,
) -> tuple[Tensor, Tensor]:
    """Return the selection (M,) of a class, and the scores (M, B) of its proposals with the other bags fixed.

    The half steps are added to `steps`.
    """
    bags, class_bags = target.positives[label], target.class_bags
    with steps.relocalization(0):
        rows = bags.to(class_bags.device)
        boxes, valid = class_bags.boxes[rows], class_bags.valid[rows]
        sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=1e-6)  # (M, B, 2)
        aspect = (sides[..., 0] / sides[..., 1]).log() * valid
        size = class_bags.area[rows].clamp(min=1e-6).log()
        objectness = transfer.unary.of_class(target.bags.features(bags))
        cues = Cues({"objectness": objectness}, class_bags.features(bags), aspect)
    weights, selection = generic, torch.full((len(bags),), -1)
    for number in range(settings.rounds + 1):
        with steps.relocalization(number):
            problem = cues.problem(weights, valid)
            before, selection = selection, problem.solve(k=settings.k, seed=settings.seed + label).selection.cpu()
        steps.count(number, int((selection != before).sum()))
        if number == settings.rounds:
            break
        with steps.retraining(number + 1):
            svm, bias = train_svm(target, label, bags, selection, seed=settings.seed + 1000 * number + label)
            learned = {
                "objectness": objectness,
                "appearance": cues.features @ svm + bias,
                "shape": _likelihood(aspect, selection) + _likelihood(size, selection),
            }
            cues = Cues(learned, cues.features, aspect)
            fitted = _adapted_weights(cues, selection, boxes, valid, generic)
            weights = {name: (1 - settings.adapt) * generic[name] + settings.adapt * fitted[name] for name in generic}
    return selection, problem.conditional(selection)


def _likelihood(values: Tensor, selection: Tensor) -> Tensor:
    """Logarithm (M, B) of the normal density of the selected values, up to a constant; values (M, B)."""
    chosen = values.gather(1, selection.to(values.device)[:, None])
    spread = chosen.std() if len(chosen) > 1 else chosen.new_tensor(1.0)
    return -0.5 * ((values - chosen.mean()) / spread.clamp(min=0.1)) ** 2


def _adapted_weights(
    cues: Cues, selection: Tensor, boxes: Tensor, valid: Tensor, generic: dict[str, float]
) -> dict[str, float]:
    """Weights of the cues that tell the selected boxes (M, B, 4) from the other proposals of their bags.

    They are at least 0 and have the same sum as the generic ones, so that only their proportions are learned.
    """
    rows = torch.arange(len(boxes), device=boxes.device)
    chosen = selection.to(boxes.device)
    ones = torch.ones(len(rows), device=boxes.device) / max(len(rows) - 1, 1)
    pairs = {
        name: CuePairs(cues.features, cues.aspect, *parts).against(rows, rows, chosen, ones) / 2
        for name, parts in (("similar appearance", (1.0, 0.0)), ("similar shape", (0.0, 1.0)))
    }
    columns = torch.stack([*cues.unary.values(), *pairs.values()], dim=-1)  # (M, B, cues)
    names = [*cues.unary, *pairs]
    spread = columns[valid].std(dim=0).clamp(min=1e-6)
    shows = (iou(boxes[rows, chosen][:, None], boxes)[:, 0] >= _SELECTED_IOU) & valid
    weight = 0.5 * (shows / shows.sum() + (valid & ~shows) / (valid & ~shows).sum().clamp(min=1))
    fitted = fit_logistic(
        lambda batch: columns[batch] / spread,
        lambda batch: (shows[batch][..., None].float(), weight[batch][..., None]),
        rows,
        torch.zeros(1, len(names) + 1, device=boxes.device),
        decay=_DECAY,
    )[0, :-1]
    values = (fitted / spread).clamp(min=0)
    total = float(values.sum())
    if not total:
        return generic
    return {name: float(value) * sum(generic.values()) / total for name, value in zip(names, values, strict=True)}
