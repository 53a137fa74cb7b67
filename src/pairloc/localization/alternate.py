"""Alternating optimisation (paper, section 4): warm-up, then re-train and re-localize in turn on one objective."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pairloc.executors import Executor, Serial
from pairloc.localization.class_view import ClassView
from pairloc.localization.descent import Curve
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.objective import Objective
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Selection, Target, fold_of_bags
from pairloc.settings import EnergySettings, LocalizationSettings

Log = Callable[[str], None]


def silent(line: str) -> None:
    """Log nothing."""


@dataclass(frozen=True)
class HalfStep:
    """The state after a re-training or a re-localization."""

    round: int  # 0 is the warm-up
    step: str  # "re-train" or "re-localize"
    objective: float | None  # of all classes; None with folds, where there is not one
    changed: int  # bags that got another proposal
    kept: bool  # False for a re-training the safeguard threw away
    seconds: float


@dataclass(frozen=True)
class State:
    """All that the next round needs, and all that came out."""

    selection: Selection
    gaps: tuple[Tensor, ...]  # for every class how much worse the next best proposal of each bag is (M,)
    fold: Tensor  # (N,) of every bag
    scores: tuple[ClassScores, ...] = ()  # of every fold
    history: tuple[HalfStep, ...] = ()
    curves: tuple[Curve, ...] = ()  # of every re-training, fold after fold, round after round
    converged: bool = False  # the last round changed nothing

    @property
    def n_iter(self) -> int:
        """Rounds done."""
        return max((step.round for step in self.history), default=0)


@dataclass
class Alternation:
    """The method: `warm_up`, then `round` by `round`; `run` does all of it."""

    target: Target
    transfer: TransferScores
    settings: LocalizationSettings
    energy: EnergySettings
    executor: Executor = field(default_factory=Serial)
    log: Log = silent
    after_round: Callable[[State], None] = lambda state: None
    objective: Objective = field(init=False)

    def __post_init__(self) -> None:
        self.objective = Objective(self.target, self.energy, self.settings.seed)

    def run(self, state: State | None = None, rounds: int | None = None) -> State:
        """Warm up, then re-train and re-localize until nothing changes; goes on from a state."""
        rounds = self.settings.rounds if rounds is None else rounds
        if state is None:
            state = self.warm_up()
            self.after_round(state)
        while state.n_iter < rounds and not state.converged:
            state = self.round(state)
            self.after_round(state)
        return state

    def warm_up(self) -> State:
        """The first re-localization, by the transfer scores alone (lambda1 = lambda2 = 1)."""
        none = tuple(torch.zeros(len(bags), dtype=torch.int64) for bags in self.target.positives)
        fold = fold_of_bags(self.target, self.settings.folds, self.settings.seed)
        return self.relocalize(State(none, tuple(map(torch.zeros_like, none)), fold), 0)

    def round(self, state: State) -> State:
        """Re-train on the selection without each fold, then re-localize that fold with what was learned."""
        number = state.n_iter + 1
        return self.relocalize(self.retrain(state, number), number)

    def retrain(self, state: State, number: int) -> State:
        """Class scores from the selection, for every fold from the bags of the others."""
        start = time.perf_counter()
        _ = self.target.class_bags  # read here once, not by every task
        task = Retrain(self.target, self.settings, self.energy, state, number)
        trained = self.executor.map(task, range(self.settings.folds))
        for fold, (_, curve) in enumerate(trained):
            if curve:
                best = min(curve, key=lambda row: row["held-out loss"])
                loss, step = best["held-out loss"], best["step"]
                model = f"model {fold + 1} of {len(trained)}"
                self.log(f"round {number}, {model}: held-out loss {loss:.4f} after {step:.0f} steps")
        scores, curves = zip(*trained, strict=True)
        after, kept = self._safeguard(state, replace(state, scores=scores, curves=(*state.curves, *curves)))
        return self._note(after, number, "re-train", 0, start, kept=kept)

    def relocalize(self, state: State, number: int) -> State:
        """Select anew in every bag, by scores that never saw it."""
        start = time.perf_counter()
        task = Relocalize(self.target, self.transfer, self.settings, self.energy, state)
        found = self.executor.map(task, range(len(self.target.classes)))
        selection, gaps = zip(*found, strict=True)
        changed = sum(int((a != b).sum()) for a, b in zip(selection, state.selection, strict=True))
        moved = replace(state, selection=selection, gaps=gaps, converged=bool(state.scores) and not changed)
        return self._note(moved, number, "re-localize", changed if number else sum(map(len, selection)), start)

    def measure(self, state: State) -> float | None:
        """The objective of scores and selection, summed over classes."""
        if self.settings.folds > 1:
            return None
        own = state.scores[0] if state.scores else None
        total = 0.0
        for label, selection in enumerate(state.selection):
            total += self.objective.without_selection(label, self.transfer, own)
            if len(selection):
                total += (
                    ClassView(self.target, self.transfer, label, self.settings, self.energy)
                    .problem(own)
                    .energy(selection)
                )
        return total

    def _safeguard(self, before: State, after: State) -> tuple[State, bool]:
        """With the safeguard on, a re-training that does not lower the objective is thrown away."""
        last = before.history[-1].objective
        new = self.measure(after) if self.settings.safeguard else None
        if new is None or last is None or new < last:
            return after, True
        return replace(after, scores=before.scores), False

    def _note(self, state: State, number: int, step: str, changed: int, start: float, *, kept: bool = True) -> State:
        entry = HalfStep(number, step, self.measure(state), changed, kept, time.perf_counter() - start)
        measured = "" if entry.objective is None else f", objective {entry.objective:.6g}"
        learned = "learned from the boxes" if kept else "learned from the boxes, not used: the objective did not fall"
        chosen = f"{changed} boxes changed" if number else f"{changed} boxes"
        line = f"round {number}: " if number else "first choice: "
        line += learned if step == "re-train" else chosen
        self.log(f"{line}{measured}, {entry.seconds:.1f} s")
        return replace(state, history=(*state.history, entry))


@dataclass(frozen=True)
class Retrain:
    """The task of re-training without one fold."""

    target: Target
    settings: LocalizationSettings
    energy: EnergySettings
    state: State
    number: int

    def __call__(self, fold: int) -> tuple[ClassScores, Curve]:
        """The class scores learned from all bags but those of a fold, and how the loss fell."""
        state, folds = self.state, self.settings.folds
        seen = state.fold != fold if folds > 1 else torch.ones_like(state.fold, dtype=torch.bool)
        seed = self.settings.seed + 1000 * self.number + fold
        return retrain(self.target, state.selection, self.settings, self.energy, allowed=seen, seed=seed)


@dataclass(frozen=True)
class Relocalize:
    """The task of selecting anew in the bags of one class."""

    target: Target
    transfer: TransferScores
    settings: LocalizationSettings
    energy: EnergySettings
    state: State

    def __call__(self, label: int) -> tuple[Tensor, Tensor]:
        """The selection (M,) and the gaps (M,) of a class: fold by fold, each with the choices of the others."""
        state, settings = self.state, self.settings
        selection, gaps = state.selection[label].clone(), state.gaps[label].double()
        if not len(selection):
            return selection, gaps
        view = ClassView(self.target, self.transfer, label, settings, self.energy)
        folds = state.fold[self.target.positives[label]]
        solver = settings.solver
        for f, own in enumerate(state.scores or (None,)):
            held = folds == f if len(state.scores) > 1 else None
            before = selection if state.scores else None
            for rows, problem in view.problems(own, before, held):
                found = problem.solve(
                    "mini-problems", k=solver.k, solver=solver.name,
                    iterations=solver.iterations, epochs=solver.epochs, seed=settings.seed + label,
                    previous=None if before is None else before[rows],
                )  # fmt: skip
                selection[rows], gaps[rows] = found.selection.cpu(), found.gaps
        return selection, gaps
