"""The confidence of a selected box: the probability that it is right, learned on the source, never on target boxes.

It is a logistic function of signals. Two are always there. The gap is the cost of switching a bag to its next-best
proposal. The agreement is the fraction of views that prefer the selected box. A view is the best proposal of a bag by
one set of scores (the transfer unary scores, all transfer scores, or the class scores not trained on the bag), with all
other bags fixed. With learned evidence there are more: the probability of the box by its scores, its mean over the
class, and evidence terms of the box. `calibration.py` and `playing.py` fit the function on playing classes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from pairloc.boxes import iou
from pairloc.io import read_model, write_json
from pairloc.localization.class_view import ClassView
from pairloc.localization.evidence import Terms

FILE = "calibration.json"
_SAME_IOU = 0.5  # two boxes with a higher IoU count as the same
_MIN_BOXES = 100  # with fewer boxes the default curve is used
_SIGNALS = (  # terms of a box
    "transfer score", "objectness", "known class", "own class", "doubt", "company", "log area", "border",
)  # fmt: skip
_CLASS_SIGNALS = ("probability", "score", "transfer score", "stands out")
_DECAY = 3e-3  # of the squared weights of signals, per box
_LIMIT = 4.0  # standardised signals are clipped to this
_MIN_SCALE = 0.25  # the scale of a fitted curve stays between this and its inverse


class Calibration(BaseModel):
    """P(correct) = sigmoid(bias + weighted sum of standardised signals).

    Without weights of signals, the curve is sigmoid(bias + scale * (2 agreement + log(1 + gap))).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    bias: float = -2.0
    scale: float = 1.0
    signals: dict[str, tuple[float, Annotated[float, Field(gt=0)], float]] = {}  # mean, standard deviation, weight

    def of_signals(self, signals: Mapping[str, Tensor]) -> Tensor:
        """Return the probabilities (n,) for signals (n,) by name; one that is missing counts as its mean."""
        if not self.signals:
            return self(signals["agreement"], signals["gap"])
        total = torch.full_like(signals["gap"], self.bias)
        for name, (mean, std, weight) in self.signals.items():
            if name in signals:
                total = total + weight * _standardised(signals[name], mean, std)
        return torch.sigmoid(total)

    @classmethod
    def fit_signals(cls, signals: Mapping[str, Tensor], correct: Tensor) -> "Calibration":
        """Fit the weights of signals (n,) to n boxes, given which of them are correct (n,).

        Too few boxes, or boxes that are all correct or all wrong, give the default curve.
        """
        if len(correct) < _MIN_BOXES or correct.all() or not correct.any():
            return cls()
        statistics = {name: _statistics(values) for name, values in signals.items() if not values.isnan().all()}
        columns = [_standardised(signals[name], *statistics[name]) for name in statistics]
        design = torch.stack([torch.ones(len(correct), dtype=torch.float64), *columns], dim=1)
        weights = torch.zeros(design.shape[1], dtype=torch.float64)
        decay = torch.full_like(weights, _DECAY * len(correct)).diag()
        decay[0, 0] = 1e-6
        for _ in range(50):  # Newton steps on a convex loss
            p = torch.sigmoid(design @ weights)
            gradient = design.T @ (p - correct.double()) + decay @ weights
            hessian = (design * (p * (1 - p))[:, None]).T @ design + decay
            weights = weights - torch.linalg.solve(hessian, gradient).clamp(-2, 2)
        fitted = {
            name: (round(mean, 5), round(std, 5), round(float(weight), 5))
            for (name, (mean, std)), weight in zip(statistics.items(), weights[1:], strict=True)
        }
        return cls(bias=round(float(weights[0]), 5), scale=1.0, signals=fitted)

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


def confidence(calibration: Calibration, signals: Mapping[str, Tensor]) -> Tensor:
    """Return the confidence (M,) in the selected boxes of a class.

    It is halved for a class of one bag, which has no other bag to confirm it.
    """
    calibrated = calibration.of_signals(signals)
    return calibrated if len(calibrated) > 1 else calibrated / 2


def plain_signals(agreement: Tensor, gap: Tensor) -> dict[str, Tensor]:
    """Return the signals that are always there, from agreements (M,) and gaps (M,)."""
    return {"agreement": agreement.double(), "gap": torch.nan_to_num(gap.double(), nan=0.0, posinf=20.0)}


def evidence_signals(terms: Terms, scores: Tensor, probability: Tensor, selection: Tensor) -> dict[str, Tensor]:
    """Return the further signals with learned evidence, for the selected boxes (M,) and their `probability` (M,).

    These are terms of the box, its score among all `scores` (M, B), how much more it recurs under the tag than
    elsewhere, and means over the class, which tell whether the weights can find things of its kind at all.
    """
    rows = torch.arange(len(selection), device=terms.table.device)

    def of_box(values: Tensor) -> Tensor:
        return values[rows.to(values.device), selection.to(values.device)].double().cpu()

    signals = {name: of_box(terms.column(name)) for name in _SIGNALS}
    signals["known tag"] = torch.full((len(selection),), float("own class" in terms.names), dtype=torch.float64)
    signals["probability"] = torch.logit(probability.double().clamp(0.01, 0.99))
    signals["score"] = of_box(scores)
    signals["stands out"] = of_box(terms.column("recurrence") - terms.column("elsewhere"))
    means = {f"{name}, class mean": signals[name].nanmean().expand(len(selection)) for name in _CLASS_SIGNALS}
    return signals | means


def _statistics(values: Tensor) -> tuple[float, float]:
    mean = float(values.nanmean().nan_to_num())
    return mean, max(float((values - mean).pow(2).nanmean().nan_to_num().sqrt()), 1e-3)


def _standardised(values: Tensor, mean: float, std: float) -> Tensor:
    return torch.nan_to_num((values.double() - mean) / std, nan=0.0).clamp(-_LIMIT, _LIMIT)


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
