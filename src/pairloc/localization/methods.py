"""The methods of the paper's tables. Each is a recipe: a function from a session to an outcome.

To add one: its function (a baseline in a file of `baselines/`, with settings of its own), and its line in `METHODS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from pairloc.errors import InputError
from pairloc.executors import Executor
from pairloc.localization.alternate import Alternation, Log, State
from pairloc.localization.baselines.mi_svm import mi_svm
from pairloc.localization.checkpoint import STATE, load_state, save_state
from pairloc.localization.class_view import ClassView
from pairloc.localization.confidence import agreement, confidence
from pairloc.localization.learned import Learned
from pairloc.localization.outcome import Outcome
from pairloc.localization.target import Target
from pairloc.settings import EnergySettings, LocalizationSettings, MiSvmSettings, RunSettings, Settings


@dataclass(frozen=True)
class Session:
    """What a recipe works with."""

    target: Target
    learned: Learned
    executor: Executor
    log: Log
    checkpoint: Path | None = None  # a folder that the state is kept in


def alternating(session: Session, settings: LocalizationSettings, *, pairs: bool, rounds: int | None) -> Outcome:
    """Warm-up and rounds; with or without pair scores, with all rounds or so many."""
    energy = settings.energy if pairs else settings.energy.without_pairs()
    file = None if session.checkpoint is None else session.checkpoint / STATE
    keep = (lambda state: None) if file is None else partial(save_state, file=file)
    known = None if file is None else load_state(file, session.target, settings)
    learned = session.learned
    loop = Alternation(session.target, learned.scores, settings, energy, session.executor, session.log, keep)
    state = loop.run(known, rounds)
    task = Judge(session.target, learned, settings, energy, state)
    judged = session.executor.map(task, range(len(session.target.classes)))
    scores, agreements, sure = zip(*judged, strict=True)
    return Outcome(state, scores, agreements, sure, settings.boxes)


@dataclass(frozen=True)
class Judge:
    """The task of scoring all proposals of a class once its selection stands."""

    target: Target
    learned: Learned
    settings: LocalizationSettings
    energy: EnergySettings
    state: State

    def __call__(self, label: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (M, B) while the other bags keep theirs, agreement (M,) and confidence (M,)."""
        state, selection = self.state, self.state.selection[label]
        if not len(selection):
            nothing = state.gaps[label].double()
            return nothing.new_zeros(0, self.target.bags.size), nothing, nothing
        view = ClassView(self.target, self.learned.scores, label, self.settings, self.energy)
        fold = state.fold[self.target.positives[label]]
        scores = view.conditional(state.scores, selection, fold)
        agree = agreement(view, scores, selection, trained=bool(state.scores))
        return scores, agree, confidence(self.learned.calibration, agree, state.gaps[label])


def warm_up_unary(session: Session, settings: LocalizationSettings) -> Outcome:
    """The best transfer unary score."""
    return alternating(session, settings, pairs=False, rounds=0)


def warm_up(session: Session, settings: LocalizationSettings) -> Outcome:
    """The first re-localization, by transfer scores."""
    return alternating(session, settings, pairs=True, rounds=0)


def unary(session: Session, settings: LocalizationSettings) -> Outcome:
    """The whole loop with unary scores alone."""
    return alternating(session, settings, pairs=False, rounds=None)


def full(session: Session, settings: LocalizationSettings) -> Outcome:
    """The whole loop."""
    return alternating(session, settings, pairs=True, rounds=None)


def svm_baseline(session: Session, settings: MiSvmSettings) -> Outcome:
    """MI-SVM, which knows neither pair scores nor what they were calibrated for."""
    return mi_svm(session.target, settings, session.log)


@dataclass(frozen=True)
class Method:
    """A recipe, and which part of a run's settings it reads."""

    recipe: Callable[..., Outcome]
    short: str  # name in figures
    section: Callable[[RunSettings], Settings] = lambda settings: settings.localization


METHODS: dict[str, Method] = {
    "warm-up-unary": Method(warm_up_unary, "WUU"),
    "warm-up": Method(warm_up, "WU"),
    "unary": Method(unary, "U"),
    "full": Method(full, "F"),
    "mi-svm": Method(svm_baseline, "SVM", lambda settings: settings.mi_svm),
}


def check_method(name: str) -> None:
    """Raise an InputError if there is no such method."""
    if name not in METHODS:
        raise InputError(f"there is no method {name!r}; known are {', '.join(METHODS)}")
