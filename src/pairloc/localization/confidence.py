"""The confidence of a selected box in 0 ... 1, calibrated on the source, never on the ground truth of the target.

It combines two signals. The gap is the cost of switching a bag to its next-best proposal. The agreement is the fraction
of views that prefer the selected box. A view is the best proposal of a bag by one set of scores (the transfer unary
scores, all transfer scores, or the class scores not trained on the bag), with all other bags fixed. `calibration.py`
fits a logistic curve of both signals on playing classes.
"""

from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from pairloc.boxes import iou
from pairloc.io import read_model, write_json
from pairloc.localization.class_view import ClassView

FILE = "calibration.json"
_SAME_IOU = 0.5  # two boxes with a higher IoU count as the same
_MIN_BOXES = 100  # with fewer boxes the default curve is used
_MIN_SCALE = 0.25  # the scale of a fitted curve stays between this and its inverse


class Calibration(BaseModel):
    """The curve P(correct) = sigmoid(bias + scale * signal), with signal = 2 agreement + log(1 + gap)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    bias: float = -2.0
    scale: float = 1.0

    def __call__(self, agreement: Tensor, gap: Tensor) -> Tensor:
        """Return the probabilities (n,) for agreements (n,) in 0 ... 1 and non-negative gaps (n,)."""
        return torch.sigmoid(self.bias + self.scale * _signal(agreement, gap))

    @classmethod
    def fit(cls, agreement: Tensor, gap: Tensor, correct: Tensor) -> "Calibration":
        """Fit an increasing curve to n boxes, given which of them are correct (n,).

        Too few boxes, or boxes that are all correct or all wrong, give the default curve.
        """
        if len(correct) < _MIN_BOXES or correct.all() or not correct.any():
            return cls()
        design = torch.stack([torch.ones_like(gap), _signal(agreement, gap)], dim=1).double()
        weights = torch.zeros(2, dtype=torch.float64)
        for _ in range(50):  # Newton steps on a convex loss
            p = torch.sigmoid(design @ weights)
            gradient = design.T @ (p - correct.double()) + 1e-3 * weights
            hessian = (design * (p * (1 - p))[:, None]).T @ design + 1e-3 * torch.eye(2, dtype=torch.float64)
            weights = weights - torch.linalg.solve(hessian, gradient).clamp(-2, 2)
        scale = min(max(float(weights[1]), _MIN_SCALE), 1 / _MIN_SCALE)
        mean = float(correct.double().mean())
        level = torch.logit(torch.tensor(mean, dtype=torch.float64)) - scale * design[:, 1].mean()
        bias = float(weights[0]) if scale == float(weights[1]) else float(level)
        return cls(bias=bias, scale=scale)

    def save(self, folder: Path) -> None:
        """Write bias and scale to a JSON file in a folder."""
        write_json(folder / FILE, self.model_dump())

    @classmethod
    def load(cls, folder: Path) -> "Calibration":
        """Read what `save` wrote; return the default curve if the file does not exist."""
        return read_model(folder / FILE, cls) if (folder / FILE).is_file() else cls()


def _signal(agreement: Tensor, gap: Tensor) -> Tensor:
    return 2 * agreement + torch.log1p(gap.clamp(min=0))


def confidence(calibration: Calibration, agreement: Tensor, gap: Tensor) -> Tensor:
    """Return the confidence (M,) in the selected boxes of a class.

    It is halved for a class of one bag, which has no other bag to confirm it.
    """
    calibrated = calibration(agreement, torch.nan_to_num(gap.double(), nan=0.0, posinf=20.0))
    return calibrated if len(gap) > 1 else calibrated / 2


def agreement(view: ClassView, conditional: Tensor, selection: Tensor, *, trained: bool) -> Tensor:
    """Return the fraction of views (M,) that prefer the selected box or one that overlaps it well.

    The transfer unary scores and all transfer scores are two views. If the class scores were `trained`, their
    `conditional` scores (M, B), which made the `selection` (M,), are a third.
    """
    boxes = view.target.boxes(view.label)  # (M, B, 4)
    chosen = boxes.gather(1, selection.to(boxes.device)[:, None, None].expand(-1, 1, 4))
    one_fold = torch.zeros_like(selection)
    views = [view.unary(None), view.conditional((), selection, one_fold)]
    votes = []
    for scores in [*views, conditional] if trained else views:
        preferred = scores.argmax(dim=1)
        box = boxes.gather(1, preferred[:, None, None].expand(-1, 1, 4))
        votes.append(iou(chosen, box)[:, 0, 0] > _SAME_IOU)
    return torch.stack(votes).double().mean(dim=0).cpu()
