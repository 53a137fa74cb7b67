"""Stochastic gradient descent with a watch on a held-out loss: the best state seen is kept."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pairloc.errors import InputError
from pairloc.settings import DescentSettings

Curve = list[dict[str, float]]
_SMOOTHED = 50  # steps whose mean loss stands for the loss where nothing is held out


def descend(
    model: nn.Module,
    loss: Callable[[], Tensor],
    held_out: Callable[[], Tensor] | None,
    settings: DescentSettings,
    *,
    what: str,
) -> Curve:
    """Train a model by the loss of fresh batches; it ends in the state with the lowest held-out loss.

    A loss that is not a number stops the training, names the step, and leaves the last good state in the model.
    """
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), settings.lr, weight_decay=settings.weight_decay)
    else:
        decay = settings.weight_decay
        optimizer = torch.optim.SGD(model.parameters(), settings.lr, momentum=settings.momentum, weight_decay=decay)
    every = max(1, settings.steps // settings.looks)
    curve: Curve = []
    best, kept, since = math.inf, _copy(model), 0
    losses: list[Tensor] = []
    model.train()
    for step in range(settings.steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _rate(step, settings.steps)
        optimizer.zero_grad()
        value: Any = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        losses.append(value.detach())
        if (step + 1) % every and step + 1 < settings.steps:
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
            if since >= settings.patience:
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
