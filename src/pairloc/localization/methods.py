"""The methods of the paper's tables. Each is a recipe: a function of a session and settings to an outcome.

To add one, write its function (a baseline goes into a file of `baselines/`, with its own settings) and add a line to
`METHODS`.
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
    """The inputs of a recipe besides its settings."""

    target: Target
    learned: Learned
    executor: Executor
    log: Log
    checkpoint: Path | None = None  # folder to save the state in after every round


def alternating(session: Session, settings: LocalizationSettings, *, pairs: bool, rounds: int | None) -> Outcome:
    """Run the alternating loop with or without pair scores; `rounds` overrides the number in the settings."""
    energy = settings.energy if pairs else settings.energy.without_pairs()
    file = None if session.checkpoint is None else session.checkpoint / STATE
    save = (lambda state: None) if file is None else partial(save_state, file=file)
    saved = None if file is None else load_state(file, session.target, settings)
    learned = session.learned
    loop = Alternation(session.target, learned.scores, settings, energy, session.executor, session.log, save)
    state = loop.run(saved, rounds)
    task = ScoreProposals(session.target, learned, settings, energy, state)
    results = session.executor.map(task, range(len(session.target.classes)))
    scores, agreements, confidences = zip(*results, strict=True)
    return Outcome(state, scores, agreements, confidences, settings.boxes)


@dataclass(frozen=True)
class ScoreProposals:
    """A task: score all proposals of a class after the last round."""

    target: Target
    learned: Learned
    settings: LocalizationSettings
    energy: EnergySettings
    state: State

    def __call__(self, label: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores (M, B) with the other bags fixed, agreement (M,) and confidence (M,) of class `label`."""
        state, selection = self.state, self.state.selection[label]
        if not len(selection):
            empty = state.gaps[label].double()
            return empty.new_zeros(0, self.target.bags.size), empty, empty
        view = ClassView(self.target, self.learned.scores, label, self.settings, self.energy)
        fold = state.fold[self.target.positives[label]]
        scores = view.conditional(state.scores, selection, fold)
        agree = agreement(view, scores, selection, trained=bool(state.scores))
        return scores, agree, confidence(self.learned.calibration, agree, state.gaps[label])


def warm_up_unary(session: Session, settings: LocalizationSettings) -> Outcome:
    """Select the best transfer unary score in every bag."""
    return alternating(session, settings, pairs=False, rounds=0)


def warm_up(session: Session, settings: LocalizationSettings) -> Outcome:
    """Run the first re-localization, with the transfer scores."""
    return alternating(session, settings, pairs=True, rounds=0)


def unary(session: Session, settings: LocalizationSettings) -> Outcome:
    """Run the whole loop with unary scores alone."""
    return alternating(session, settings, pairs=False, rounds=None)


def full(session: Session, settings: LocalizationSettings) -> Outcome:
    """Run the whole loop."""
    return alternating(session, settings, pairs=True, rounds=None)


def svm_baseline(session: Session, settings: MiSvmSettings) -> Outcome:
    """Run the baseline MI-SVM, which uses neither transfer scores nor their calibration."""
    return mi_svm(session.target, settings, session.log)


@dataclass(frozen=True)
class Method:
    """A recipe, its name in figures, and the section of the run settings it reads."""

    recipe: Callable[..., Outcome]
    short: str
    section: Callable[[RunSettings], Settings] = lambda settings: settings.localization


METHODS: dict[str, Method] = {
    "warm-up-unary": Method(warm_up_unary, "WUU"),
    "warm-up": Method(warm_up, "WU"),
    "unary": Method(unary, "U"),
    "full": Method(full, "F"),
    "mi-svm": Method(svm_baseline, "SVM", lambda settings: settings.mi_svm),
}


def check_method(name: str) -> None:
    """Raise an InputError if a method does not exist."""
    if name not in METHODS:
        raise InputError(f"there is no method {name!r}; known are {', '.join(METHODS)}")
