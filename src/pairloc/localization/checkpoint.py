"""Checkpoints of the alternating loop: written after every round, so that an interrupted run can resume."""

import json
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pairloc.errors import InputError
from pairloc.io import write_tensors
from pairloc.localization.alternate import HalfStep, State
from pairloc.localization.functions import ClassScores
from pairloc.localization.target import Selection, Target
from pairloc.settings import LocalizationSettings

STATE = "state.safetensors"


def save_state(state: State, file: Path) -> None:
    """Write a state to a safetensors file."""
    tensors: dict[str, Tensor] = {"fold": state.fold}
    for label, (selection, gaps) in enumerate(zip(state.selection, state.gaps, strict=True)):
        tensors |= {f"selection.{label}": selection, f"gaps.{label}": gaps}
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
        history = tuple(HalfStep(**step) for step in json.loads(facts["history"]))
        classes = range(len(target.classes))
        selection = tuple(tensors[f"selection.{label}"] for label in classes)
        gaps = tuple(tensors[f"gaps.{label}"] for label in classes)
        _check_target(selection, target)
        curves, converged = tuple(json.loads(facts["curves"])), bool(json.loads(facts["converged"]))
        return State(selection, gaps, tensors["fold"], tuple(scores), history, curves, converged)
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"{file}: cannot be resumed from ({reason}); delete it to start again") from error


def _check_target(selection: Selection, target: Target) -> None:
    if [len(chosen) for chosen in selection] != [len(bags) for bags in target.positives]:
        raise ValueError("it belongs to another target")
