"""The methods of the paper's tables as named presets on one code, and how a method's state is kept on disk."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from safetensors import safe_open
from torch import Tensor

from pairloc.errors import InputError
from pairloc.io import write_tensors
from pairloc.localization.alternate import Alternation, HalfStep, Say, State
from pairloc.localization.baselines.mi_svm import mi_svm
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.target import Target, fold_of_bags
from pairloc.settings import LearningSettings, Method
from pairloc.sharing import ALONE, Share

METHODS = tuple(method for method in get_args(Method) if method != "fine-tuned")  # that one needs the pictures
STATE = "state.safetensors"


def settings_of(method: str, settings: LearningSettings) -> LearningSettings:
    """The settings as a method uses them."""
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}; known are {', '.join(METHODS)}")
    changes: dict[str, object] = {}
    if method in ("warm-up-unary", "unary"):
        changes |= {"alpha": 0.0, "train_pairs": False, "train_unary": True}
        if settings.lambda2 == 1 and not settings.train_unary:  # the released program learns pair scores alone
            changes |= {"lambda2": 0.5}
    if method in ("warm-up-unary", "warm-up"):
        changes |= {"rounds": 0}
    return LearningSettings.model_validate(settings.model_dump() | changes)


def run_method(
    method: str,
    target: Target,
    transfer: TransferScores,
    settings: LearningSettings,
    folder: Path | None = None,
    say: Say = lambda line: None,
    share: Share = ALONE,
) -> State:
    """Run a method; with a folder it goes on after the last round that the folder holds.

    All processes of a share run it together; the first one writes.
    """
    own = settings_of(method, settings)
    if method == "mi-svm":
        selection = mi_svm(target, own, say)
        gaps = tuple(torch.zeros(len(chosen), dtype=torch.float64) for chosen in selection)
        return State(selection, gaps, fold_of_bags(target, own.folds, own.seed))
    file = None if folder is None else folder / STATE
    after: Callable[[State], None] = (
        _keep_nothing if file is None or not share.leads else partial(save_state, file=file)
    )
    known = load_state(file, target, own) if file is not None and file.is_file() else None
    share.barrier()  # nobody writes before all have read
    alternation = Alternation(target, transfer, own, say, after, share)
    if known is None:
        known = alternation.warm_up()
        after(known)
    return alternation.run(known)


def _keep_nothing(state: State) -> None:
    """What a process does that does not write."""


def save_state(state: State, file: Path) -> None:
    """Write a state whole."""
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


def load_state(file: Path, target: Target, settings: LearningSettings) -> State:
    """Read what `save_state` wrote."""
    with safe_open(file, framework="pt") as stored:
        facts = stored.metadata()
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    classes = range(len(target.classes))
    scores = []
    for fold in range(int(facts["folds"])):
        own = ClassScores(target.own.d, len(target.classes), settings)
        start = f"scores.{fold}."
        own.load_state_dict({n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)})
        scores.append(own.to(target.own.device).eval())
    history = tuple(HalfStep(**step) for step in json.loads(facts["history"]))
    selection = tuple(tensors[f"selection.{label}"] for label in classes)
    gaps = tuple(tensors[f"gaps.{label}"] for label in classes)
    curves, converged = tuple(json.loads(facts["curves"])), bool(json.loads(facts["converged"]))
    return State(selection, gaps, tensors["fold"], tuple(scores), history, curves, converged)
