"""Stochastic gradient descent with a watch on a held-out loss: the best state seen is kept."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pairloc.errors import InputError
from pairloc.settings import TrainingSettings

Curve = list[dict[str, float]]
_SMOOTHED = 50  # steps whose mean loss stands for the loss where nothing is held out
_MOMENTUM, _WEIGHT_DECAY, _CLIP = 0.9, 5e-4, 10.0
_EVALUATIONS = 20  # of the held-out loss in all
_PATIENCE = 5  # evaluations without a new best before training stops


def descend(
    model: nn.Module,
    loss: Callable[[], Tensor],
    held_out: Callable[[], Tensor] | None,
    settings: TrainingSettings,
    *,
    what: str,
    steps: int | None = None,
) -> Curve:
    """Train a model by the loss of fresh batches; it ends in the state with the lowest held-out loss.

    `steps` is how many to make where it is not the settings' number. A loss that is not a number stops the training,
    names the step, and leaves the last good state in the model.
    """
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), settings.lr, weight_decay=_WEIGHT_DECAY)
    else:
        optimizer = torch.optim.SGD(model.parameters(), settings.lr, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    steps = settings.steps if steps is None else steps
    every = max(1, steps // _EVALUATIONS)
    curve: Curve = []
    best, kept, since = math.inf, _copy(model), 0
    losses: list[Tensor] = []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _rate(step, steps)
        optimizer.zero_grad()
        value: Any = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()
        losses.append(value.detach())
        if (step + 1) % every and step + 1 < steps:
            continue
        train = float(torch.stack(losses[-_SMOOTHED:]).mean())
        held = _held(model, held_out) if held_out is not None else train
        if not (math.isfinite(train) and math.isfinite(held)):
            bad = next((i for i, entry in enumerate(losses) if not math.isfinite(float(entry))), len(losses) - 1)
            model.load_state_dict(kept)
            at = step + 1 - len(losses) + bad + 1
            raise InputError(f"{what}: the loss is not a number in batch {at}; lower lr. The last good state is kept")
        losses = losses[-_SMOOTHED:]
        curve.append({"step": step + 1, "loss": train, "held-out loss": held})
        if held < best:
            best, kept, since = held, _copy(model), 0
        else:
            since += 1
            if since >= _PATIENCE:
                break
    model.load_state_dict(kept)
    model.eval()
    return curve


def _rate(step: int, steps: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def _held(model: nn.Module, held_out: Callable[[], Tensor]) -> float:
    model.eval()
    with torch.no_grad():
        value = float(held_out())
    model.train()
    return value


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
