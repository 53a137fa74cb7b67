"""How far to trust a selected box: a number in 0 ... 1, calibrated on the source, never on the target's truth.

Two signs: the gap, how much worse the next best proposal of the bag is, and the agreement, the share of views that come
to the same box. A view is what one set of scores (the transfer unary scores, all transfer scores, the class scores that
never saw the bag) prefers in a bag while the others keep theirs. A logistic curve of both is fitted on source classes
that play the target for transfer scores that were learned without them.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pairloc.bags.tensors import Bags
from pairloc.boxes import iou
from pairloc.localization.alternate import Alternation, State
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.problems import conditional_scores
from pairloc.localization.target import Selection, Target
from pairloc.localization.transfer import Labels, learn_transfer
from pairloc.settings import LearningSettings, TransferSettings

_SAME = 0.5  # IoU from which two boxes are the same
_CURVE = 100  # bags at least a curve is fitted to
_FLATTEST = 0.25  # scale of a curve
_PLAYING = 3  # one class in so many plays the target
_BAGS = 60  # of a playing class at most


@dataclass(frozen=True)
class Calibration:
    """P(right) = sigmoid(bias + scale * sign), with the two signs in one: sign = 2 agreement + log(1 + gap)."""

    bias: float = -2.0
    scale: float = 1.0

    def __call__(self, agreement: Tensor, gap: Tensor) -> Tensor:
        """Agreement (n,) in 0 ... 1 and gap (n,) from 0 on -> (n,)."""
        return torch.sigmoid(self.bias + self.scale * _sign(agreement, gap))

    @classmethod
    def fit(cls, agreement: Tensor, gap: Tensor, right: Tensor) -> "Calibration":
        """The curve of boxes (n,) of which it is known whether they are right (n,); it always rises."""
        if len(right) < _CURVE or right.all() or not right.any():
            return cls()
        signs = torch.stack([torch.ones_like(gap), _sign(agreement, gap)], dim=1).double()
        weights = torch.zeros(2, dtype=torch.float64)
        for _ in range(50):  # Newton's steps on a convex loss
            p = torch.sigmoid(signs @ weights)
            gradient = signs.T @ (p - right.double()) + 1e-3 * weights
            hessian = (signs * (p * (1 - p))[:, None]).T @ signs + 1e-3 * torch.eye(2, dtype=torch.float64)
            weights = weights - torch.linalg.solve(hessian, gradient).clamp(-2, 2)
        scale = min(max(float(weights[1]), _FLATTEST), 1 / _FLATTEST)
        share = float(right.double().mean())
        level = torch.logit(torch.tensor(share, dtype=torch.float64)) - scale * signs[:, 1].mean()
        bias = float(weights[0]) if scale == float(weights[1]) else float(level)
        return cls(bias, scale)


def _sign(agreement: Tensor, gap: Tensor) -> Tensor:
    return 2 * agreement + torch.log1p(gap.clamp(min=0))


def confidence(
    target: Target, transfer: TransferScores, state: State, settings: LearningSettings, calibration: Calibration
) -> tuple[Tensor, ...]:
    """Of every class: the confidence (M,) in the selected box of each bag. A class of one bag has no second opinion."""
    found = []
    for label, bags in enumerate(target.positives):
        gap = torch.nan_to_num(state.gaps[label].double(), nan=0.0, posinf=20.0)
        if not len(bags):
            found.append(gap)
            continue
        sure = calibration(agreement(target, transfer, state.scores, state.selection, label, settings, state.fold), gap)
        found.append(sure if len(bags) > 1 else sure / 2)
    return tuple(found)


def agreement(
    target: Target,
    transfer: TransferScores,
    scores: tuple[ClassScores, ...],
    selection: Selection,
    label: int,
    settings: LearningSettings,
    fold: Tensor,
) -> Tensor:
    """The share of views that prefer the selected box, or one much like it, in each bag of a class: (M,)."""
    chosen = target.boxes(selection, label)  # (M, 4)
    boxes = target.transfer.boxes[target.positives[label].to(target.transfer.device)]  # (M, B, 4)
    votes = []
    unary_alone = settings.model_copy(update={"alpha": 0.0, "train_pairs": False})
    views: list[tuple[tuple[ClassScores, ...], LearningSettings]] = [((), unary_alone), ((), settings)]
    if scores:
        views.append((scores, settings))
    for view, how in views:
        preferred = conditional_scores(target, transfer, view, selection, label, how, fold).argmax(dim=1)
        box = boxes.gather(1, preferred[:, None, None].expand(-1, 1, 4))
        votes.append(iou(chosen[:, None], box)[:, 0, 0] > _SAME)
    return torch.stack(votes).double().mean(dim=0).cpu()


def calibrate(bags: Bags, labels: Labels, transfer: TransferSettings, settings: LearningSettings) -> Calibration:
    """Let source classes play the target: learn transfer scores without their images, warm up on those, see what fits.

    `labels` say what the source's proposals show.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    source = Target.of(bags, bags)
    shown = [c for c, own in enumerate(source.positives) if len(own) > 1]
    order = [shown[i] for i in torch.randperm(len(shown), generator=generator).tolist()]
    playing = order[: max(1, len(shown) // _PLAYING)]
    apart = source.tagged[:, playing].any(dim=1)
    alone = apart & (source.tagged.sum(dim=1) == source.tagged[:, playing].sum(dim=1))
    played = alone if alone.sum() >= _CURVE else apart  # as the target's: pictures of its classes and nothing else
    if len(shown) < 2 or not (labels.shown.cpu()[~apart] >= 0).any(dim=1).sum() > 1:
        return Calibration()
    scores, _ = learn_transfer(bags, labels.without(apart), transfer)
    warm = LearningSettings.model_validate(settings.model_dump() | {"rounds": 0, "folds": 1, "safeguard": False})
    none = torch.zeros(0, dtype=torch.int64)
    target = replace(
        source, positives=tuple(own[played[own]] if c in playing else none for c, own in enumerate(source.positives))
    )
    target = target.some(_BAGS)
    playing = [c for c in playing if len(target.positives[c]) > 1]
    if not playing:
        return Calibration()
    state = Alternation(target, scores, warm).warm_up()
    signs = []
    for label in playing:
        hits = labels.shown.cpu()[target.positives[label], state.selection[label]] == label
        votes = agreement(target, scores, (), state.selection, label, warm, state.fold)
        signs.append((votes, torch.nan_to_num(state.gaps[label].double(), nan=0.0, posinf=20.0), hits))
    return Calibration.fit(*(torch.cat(column) for column in zip(*signs, strict=True)))
