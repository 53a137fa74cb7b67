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
from pairloc.localization.baselines.deselaers import deselaers
from pairloc.localization.baselines.lsda import lsda
from pairloc.localization.baselines.mi_svm import mi_svm
from pairloc.localization.baselines.source_classifiers import SourceClassifiers
from pairloc.localization.baselines.tang import tang
from pairloc.localization.checkpoint import STATE, load_state, save_state
from pairloc.localization.class_view import ClassView
from pairloc.localization.confidence import agreement, confidence, evidence_signals, plain_signals
from pairloc.localization.evidence import Evidence, lasting_terms
from pairloc.localization.explanation import Explanation, explain
from pairloc.localization.learned import Learned
from pairloc.localization.outcome import Outcome
from pairloc.localization.remarks import everywhere, familiar, known_tags
from pairloc.localization.target import LargestFirst, Target
from pairloc.settings import (
    DeselaersSettings,
    EnergySettings,
    LocalizationSettings,
    LsdaSettings,
    MiSvmSettings,
    RunSettings,
    Settings,
    TangSettings,
)


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
    evidence = gather_evidence(session, settings, energy)
    loop = Alternation(session.target, learned.scores, settings, energy, session.executor, session.log, save, evidence)
    state = loop.run(saved, rounds)
    task = ScoreProposals(session.target, learned, settings, energy, state, evidence)
    results = session.executor.map(task, range(len(session.target.classes)))
    scores, agreements, confidences, explanations = zip(*results, strict=True)
    if evidence is not None and (line := familiar(session.target, session.learned, state)):
        session.log(line)
    return Outcome(state, scores, agreements, confidences, settings.boxes, explanations)


def gather_evidence(
    session: Session, settings: LocalizationSettings, energy: EnergySettings
) -> tuple[Evidence | None, ...] | None:
    """Compute the evidence of every class; None if the settings or the weights do not combine it as learned."""
    if settings.unary.combination == "mixed":
        return None
    if session.learned.combination is None:
        session.log("these weights have no learned combination of evidence, so scores are mixed as in the paper")
        return None
    for line in (known_tags(session.target, session.learned), everywhere(session.target)):
        if line:
            session.log(line)
    task = GatherEvidence(session.target, session.learned, settings, energy)
    return tuple(session.executor.map(task, range(len(session.target.classes))))


@dataclass(frozen=True)
class GatherEvidence(LargestFirst):
    """A task: compute the evidence terms of a class that last for all rounds."""

    target: Target
    learned: Learned
    settings: LocalizationSettings
    energy: EnergySettings

    def __call__(self, label: int) -> Evidence | None:
        """Return the evidence of class `label`; None for a class without bags."""
        view = ClassView(self.target, self.learned.scores, label, self.settings, self.energy)
        assert self.learned.combination is not None
        return Evidence(lasting_terms(view), self.learned.combination) if len(view) else None


@dataclass(frozen=True)
class ScoreProposals(LargestFirst):
    """A task: score all proposals of a class after the last round."""

    target: Target
    learned: Learned
    settings: LocalizationSettings
    energy: EnergySettings
    state: State
    evidence: tuple[Evidence | None, ...] | None

    def __call__(self, label: int) -> tuple[Tensor, Tensor, Tensor, Explanation | None]:
        """Return scores (M, B) with the other bags fixed, agreement (M,), confidence (M,), and what explains them."""
        state, selection = self.state, self.state.selection[label]
        if not len(selection):
            empty = state.gaps[label].double()
            return empty.new_zeros(0, self.target.bags.size), empty, empty, None
        evidence = None if self.evidence is None else self.evidence[label]
        view = ClassView(self.target, self.learned.scores, label, self.settings, self.energy, evidence=evidence)
        fold = state.fold[self.target.positives[label]]
        scores = view.conditional(state.scores, selection, fold)
        agree = agreement(view, scores, selection, trained=bool(state.scores))
        signals = plain_signals(agree, state.gaps[label])
        if evidence is not None:
            signals |= evidence_signals(evidence.terms, scores, state.probability[label], selection)
        explanation = explain(view, state.scores, fold, scores, selection)
        return scores, agree, confidence(self.learned.calibration, signals), explanation


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


def deselaers_baseline(session: Session, settings: DeselaersSettings) -> Outcome:
    """Run the baseline of Deselaers et al., which uses the transfer unary score but not the pair score."""
    return deselaers(session.target, session.learned.scores, settings, session.log)


def lsda_baseline(session: Session, settings: LsdaSettings) -> Outcome:
    """Run the baseline LSDA, which uses classifiers of the source classes but no transfer scores."""
    return lsda(session.target, required_classifiers("lsda", session.learned), settings)


def tang_baseline(session: Session, settings: TangSettings) -> Outcome:
    """Run the baseline of Tang et al., which uses classifiers of the source classes but no transfer scores."""
    return tang(session.target, required_classifiers("tang", session.learned), settings, session.log)


@dataclass(frozen=True)
class Method:
    """A recipe, its name in figures, the section of the run settings it reads, and whether it needs classifiers."""

    recipe: Callable[..., Outcome]
    short: str
    section: Callable[[RunSettings], Settings] = lambda settings: settings.localization
    needs_classifiers: bool = False  # whether it needs classifiers of the source classes


METHODS: dict[str, Method] = {
    "warm-up-unary": Method(warm_up_unary, "WUU"),
    "warm-up": Method(warm_up, "WU"),
    "unary": Method(unary, "U"),
    "full": Method(full, "F"),
    "mi-svm": Method(svm_baseline, "SVM", lambda settings: settings.mi_svm),
    "deselaers": Method(deselaers_baseline, "D", lambda settings: settings.deselaers),
    "lsda": Method(lsda_baseline, "LSDA", lambda settings: settings.lsda, needs_classifiers=True),
    "tang": Method(tang_baseline, "T", lambda settings: settings.tang, needs_classifiers=True),
}


def check_method(name: str) -> None:
    """Raise an InputError if a method does not exist."""
    if name not in METHODS:
        raise InputError(f"there is no method {name!r}; known are {', '.join(METHODS)}")


def check_classifiers(method: str, learned: Learned) -> None:
    """Raise an InputError if a method needs classifiers of the source classes and there are none."""
    if method in METHODS and METHODS[method].needs_classifiers:
        required_classifiers(method, learned)


def required_classifiers(method: str, learned: Learned) -> SourceClassifiers:
    """Return the classifiers of the source classes that a method needs; raise an InputError if there are none."""
    if learned.classifiers is None:
        raise InputError(
            f"{method} needs classifiers of the source classes, which these weights do not have; give data.source "
            "instead of weights"
        )
    return learned.classifiers
