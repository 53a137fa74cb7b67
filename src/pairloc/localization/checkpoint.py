"""The state of a method on disk: written after every round, so that an interrupted one goes on from there."""

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
    """Write a state."""
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
    """Read what `save_state` wrote; None where there is nothing yet."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as stored:
            facts = stored.metadata()
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        scores = []
        for fold in range(int(facts["folds"])):
            own = ClassScores(target.class_bags.d, len(target.classes), settings)
            start = f"scores.{fold}."
            own.load_state_dict({n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)})
            scores.append(own.to(target.bags.device).eval())
        history = tuple(HalfStep(**step) for step in json.loads(facts["history"]))
        classes = range(len(target.classes))
        selection = tuple(tensors[f"selection.{label}"] for label in classes)
        gaps = tuple(tensors[f"gaps.{label}"] for label in classes)
        _same_target(selection, target)
        curves, converged = tuple(json.loads(facts["curves"])), bool(json.loads(facts["converged"]))
        return State(selection, gaps, tensors["fold"], tuple(scores), history, curves, converged)
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"{file}: is not a state that can be gone on from ({reason}); delete it") from error


def _same_target(selection: Selection, target: Target) -> None:
    if [len(chosen) for chosen in selection] != [len(bags) for bags in target.positives]:
        raise ValueError("it is of another target")
