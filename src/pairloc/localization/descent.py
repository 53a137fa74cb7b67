"""Stochastic gradient descent with early stopping: the state with the lowest held-out loss is kept."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pairloc.errors import InputError
from pairloc.settings import TrainingSettings

Curve = list[dict[str, float]]
_SMOOTHED = 50  # number of steps over which the training loss is averaged
_MOMENTUM, _WEIGHT_DECAY, _CLIP = 0.9, 5e-4, 10.0
_EVALUATIONS = 20  # number of times the held-out loss is measured
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
    """Train a model in place and leave it in the state with the lowest held-out loss.

    `loss` draws a new batch at every call. Without `held_out`, the training loss is used for early stopping. `steps`
    overrides the number of steps in the settings; `what` names the model in messages. Raises an InputError if the loss
    is not finite; the model then holds its best state so far.
    """
    optimizer: torch.optim.Optimizer
    if settings.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), settings.lr, weight_decay=_WEIGHT_DECAY)
    else:
        optimizer = torch.optim.SGD(model.parameters(), settings.lr, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    steps = settings.steps if steps is None else steps
    interval = max(1, steps // _EVALUATIONS)
    curve: Curve = []
    lowest, best_state, without_improvement = math.inf, _copy_state(model), 0
    losses: list[Tensor] = []
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _cosine_rate(step, steps)
        optimizer.zero_grad()
        value: Any = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimizer.step()
        losses.append(value.detach())
        if (step + 1) % interval and step + 1 < steps:
            continue
        train_loss = float(torch.stack(losses[-_SMOOTHED:]).mean())
        held_out_loss = _held_out_loss(model, held_out) if held_out is not None else train_loss
        if not (math.isfinite(train_loss) and math.isfinite(held_out_loss)):
            first_bad = next((i for i, entry in enumerate(losses) if not math.isfinite(float(entry))), len(losses) - 1)
            model.load_state_dict(best_state)
            at = step + 1 - len(losses) + first_bad + 1
            raise InputError(f"{what}: the loss is not finite at step {at}; lower training.lr")
        losses = losses[-_SMOOTHED:]
        curve.append({"step": step + 1, "loss": train_loss, "held-out loss": held_out_loss})
        if held_out_loss < lowest:
            lowest, best_state, without_improvement = held_out_loss, _copy_state(model), 0
        else:
            without_improvement += 1
            if without_improvement >= _PATIENCE:
                break
    model.load_state_dict(best_state)
    model.eval()
    return curve


def _cosine_rate(step: int, steps: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def _held_out_loss(model: nn.Module, held_out: Callable[[], Tensor]) -> float:
    model.eval()
    with torch.no_grad():
        value = float(held_out())
    model.train()
    return value


def _copy_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
