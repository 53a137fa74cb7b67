"""Checkpoints of the alternating loop: written after every round, so that an interrupted run can resume."""

import json
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pairloc.errors import InputError
from pairloc.io import write_tensors
from pairloc.localization.alternate import HalfStep, State
from pairloc.localization.descent import Curve
from pairloc.localization.functions import ClassScores
from pairloc.localization.target import Target
from pairloc.settings import LocalizationSettings

STATE = "state.safetensors"


def save_state(state: State, file: Path) -> None:
    """Write a state to a safetensors file."""
    tensors: dict[str, Tensor] = {"fold": state.fold}
    columns = {"selection": state.selection, "gaps": state.gaps, "probability": state.probability}
    for name, entries in columns.items():
        tensors |= {f"{name}.{label}": entry for label, entry in enumerate(entries)}
    for fold, scores in enumerate(state.scores):
        tensors |= {f"scores.{fold}.{name}": tensor.cpu() for name, tensor in scores.state_dict().items()}
    facts = {
        "history": json.dumps([asdict(step) for step in state.history]),
        "curves": json.dumps(state.curves),
        "converged": json.dumps(state.converged),
        "folds": str(len(state.scores)),
    }
    write_tensors(file, tensors, facts)


def load_state(file: Path, target: Target, settings: LocalizationSettings) -> State | None:
    """Read a state that `save_state` wrote; return None if the file does not exist.

    Raises an InputError if the file is damaged or belongs to another target.
    """
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as stored:
            facts = stored.metadata()
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        scores = []
        for fold in range(int(facts["folds"])):
            class_scores = ClassScores(target.class_bags.d, len(target.classes), settings)
            prefix = f"scores.{fold}."
            class_scores.load_state_dict(
                {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            )
            scores.append(class_scores.to(target.bags.device).eval())
        history = TypeAdapter(tuple[HalfStep, ...]).validate_json(facts["history"])
        curves = TypeAdapter(tuple[Curve, ...]).validate_json(facts["curves"])
        classes = range(len(target.classes))
        selection = tuple(tensors[f"selection.{label}"] for label in classes)
        gaps = tuple(tensors[f"gaps.{label}"] for label in classes)
        probability = tuple(tensors[f"probability.{label}"] for label in classes if f"probability.{label}" in tensors)
        converged = bool(json.loads(facts["converged"]))
        state = State(selection, gaps, tensors["fold"], probability, tuple(scores), history, curves, converged)
        _check_target(state, target)
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"{file}: cannot be resumed from ({reason}); delete it to start again") from error
    return state


def _check_target(state: State, target: Target) -> None:
    """Raise ValueError if a state does not have a valid proposal and fold for every bag of the target."""
    if [len(chosen) for chosen in state.selection] != [len(bags) for bags in target.positives]:
        raise ValueError("it belongs to another target")
    lengths = list(map(len, state.selection))
    if state.fold.shape != (target.bags.count,) or list(map(len, state.gaps)) != lengths:
        raise ValueError("its folds or gaps have another length than its bags")
    if list(map(len, state.probability)) not in ([], lengths):
        raise ValueError("its probabilities have another length than its bags")
    for chosen, bags in zip(state.selection, target.positives, strict=True):
        counts = target.bags.valid.cpu()[bags].sum(dim=1)
        if chosen.is_floating_point() or bool(((chosen < 0) | (chosen >= counts)).any()):
            raise ValueError("it selects proposals that do not exist")
