"""How far to trust a selected box: a number in 0 ... 1, calibrated on the source, never on the target's truth.

Two signs: the gap, how much worse the next best proposal of the bag is, and the agreement, the part of the views that
come to the same box. A view is what one set of scores (the transfer unary scores, all transfer scores, the class scores
that never saw the bag) prefers in a bag while the others keep theirs. A logistic curve of both is fitted on playing
classes: see `calibration.py`.
"""

from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from pairloc.boxes import iou
from pairloc.io import read_model, write_json
from pairloc.localization.class_view import ClassView

FILE = "calibration.json"
_SAME = 0.5  # IoU from which two boxes are the same
_CURVE = 100  # bags at least a curve is fitted to
_FLATTEST = 0.25  # scale of a curve


class Calibration(BaseModel):
    """P(right) = sigmoid(bias + scale * sign), with the two signs in one: sign = 2 agreement + log(1 + gap)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
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
        mean = float(right.double().mean())
        level = torch.logit(torch.tensor(mean, dtype=torch.float64)) - scale * signs[:, 1].mean()
        bias = float(weights[0]) if scale == float(weights[1]) else float(level)
        return cls(bias=bias, scale=scale)

    def save(self, folder: Path) -> None:
        """Write the two numbers."""
        write_json(folder / FILE, self.model_dump())

    @classmethod
    def load(cls, folder: Path) -> "Calibration":
        """Read what `save` wrote; the default curve where there is none."""
        return read_model(folder / FILE, cls) if (folder / FILE).is_file() else cls()


def _sign(agreement: Tensor, gap: Tensor) -> Tensor:
    return 2 * agreement + torch.log1p(gap.clamp(min=0))


def confidence(calibration: Calibration, agreement: Tensor, gap: Tensor) -> Tensor:
    """The confidence in each bag's box (M,) of a class. A class of one bag has no second opinion: half as much."""
    sure = calibration(agreement, torch.nan_to_num(gap.double(), nan=0.0, posinf=20.0))
    return sure if len(gap) > 1 else sure / 2


def agreement(view: ClassView, conditional: Tensor, selection: Tensor, *, trained: bool) -> Tensor:
    """The part of the views that prefer the selected box (M,), or one much like it: (M,).

    `conditional` (M, B) are the scores that selected; where they are `trained`, the transfer scores are a view too.
    """
    boxes = view.target.boxes(view.label)  # (M, B, 4)
    chosen = boxes.gather(1, selection.to(boxes.device)[:, None, None].expand(-1, 1, 4))
    alone = torch.zeros_like(selection)
    views = [view.unary(None), view.conditional((), selection, alone)]
    votes = []
    for scores in [*views, conditional] if trained else views:
        preferred = scores.argmax(dim=1)
        box = boxes.gather(1, preferred[:, None, None].expand(-1, 1, 4))
        votes.append(iou(chosen, box)[:, 0, 0] > _SAME)
    return torch.stack(votes).double().mean(dim=0).cpu()
