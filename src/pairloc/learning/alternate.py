"""Alternating optimisation (paper, section 4): warm-up, then re-train and re-localize in turn on one objective."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pairloc.config import LearningSettings
from pairloc.inference.relocalize import Relocalization
from pairloc.learning.functions import ClassScores, TransferScores
from pairloc.learning.localization import energy, mixed_scores, relocalize_class, relocalize_held
from pairloc.learning.objective import Objective
from pairloc.learning.retrain import retrain
from pairloc.learning.target import Selection, Target, fold_of_bags

Say = Callable[[str], None]


@dataclass(frozen=True)
class HalfStep:
    """The state after a re-training or a re-localization."""

    round: int  # 0 is the warm-up
    step: str  # "re-train" or "re-localize"
    objective: float  # of all classes; NaN with folds, where there is not one
    changed: int  # bags that got another proposal
    kept: bool  # False for a re-training the safeguard threw away
    seconds: float


@dataclass(frozen=True)
class State:
    """All that the next round needs, and all that came out."""

    selection: Selection
    results: tuple[Relocalization | None, ...]  # of every class; None where it has no bag
    fold: Tensor  # (N,) of every bag
    scores: tuple[ClassScores, ...] = ()  # of every fold
    history: tuple[HalfStep, ...] = ()
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
    settings: LearningSettings
    say: Say = lambda line: None
    after_round: Callable[[State], None] = lambda state: None
    objective: Objective = field(init=False)

    def __post_init__(self) -> None:
        self.objective = Objective(self.target, self.settings)

    def run(self, state: State | None = None) -> State:
        """Warm up, then re-train and re-localize until nothing changes; goes on from a state."""
        state = state or self.warm_up()
        while state.n_iter < self.settings.rounds and not state.converged:
            state = self.round(state)
            self.after_round(state)
        return state

    def warm_up(self) -> State:
        """The first re-localization, by the transfer scores alone (lambda1 = lambda2 = 1)."""
        start = time.perf_counter()
        fold = fold_of_bags(self.target, self.settings.folds, self.settings.seed)
        results = [self._relocalize(label, None, None, None) for label in range(len(self.target.classes))]
        state = State(_selection(results), tuple(results), fold)
        return self._note(state, 0, "re-localize", sum(map(len, self.target.positives)), start)

    def round(self, state: State) -> State:
        """Re-train on the selection without each fold, then re-localize that fold with what was learned."""
        start, number, folds = time.perf_counter(), state.n_iter + 1, self.settings.folds
        scores = [self._retrain(state, fold, number) for fold in range(folds)]
        trained = replace(state, scores=tuple(scores))
        trained, kept = self._safeguarded(state, trained)
        trained = self._note(trained, number, "re-train", 0, start, kept=kept)
        start = time.perf_counter()
        new = trained
        for fold in range(folds):
            new = self._relocalized(new, fold)
        changed = sum(int((a != b).sum()) for a, b in zip(new.selection, state.selection, strict=True))
        new = self._note(new, number, "re-localize", changed, start)
        return replace(new, converged=changed == 0)

    def _retrain(self, state: State, fold: int, number: int) -> ClassScores:
        seen = state.fold != fold if self.settings.folds > 1 else torch.ones_like(state.fold, dtype=torch.bool)
        seed = self.settings.seed + 1000 * number + fold
        scores, curve = retrain(self.target, state.selection, self.settings, allowed=seen, seed=seed)
        if curve:
            best = min(curve, key=lambda entry: entry["held-out loss"])
            loss, step = best["held-out loss"], best["step"]
            self.say(f"round {number}, fold {fold + 1}: held-out loss {loss:.4f} after {step:.0f} steps")
        return scores

    def _relocalized(self, state: State, fold: int) -> State:
        """The state after the re-localization of one fold of every class."""
        selection, results = list(state.selection), list(state.results)
        for label, bags in enumerate(self.target.positives):
            held = state.fold[bags] == fold if self.settings.folds > 1 else None
            if held is not None and not held.any():
                continue
            found = self._relocalize(label, state.scores[fold], state.selection[label], held)
            if found is not None:
                results[label] = found
                selection[label] = found.selection.cpu()
        return replace(state, selection=tuple(selection), results=tuple(results))

    def _relocalize(
        self, label: int, scores: ClassScores | None, before: Tensor | None, held: Tensor | None
    ) -> Relocalization | None:
        """A class's whole selection; or that of its bags held out (M,), while the others stay as they are."""
        if not len(self.target.positives[label]):
            return None
        unary, pairs = mixed_scores(self.target, self.transfer, scores, label, self.settings)
        seed = self.settings.seed + label
        if held is None or before is None:
            return relocalize_class(unary, pairs, self.settings, before, seed)
        return relocalize_held(unary, pairs, self.settings, before, held)

    def _safeguarded(self, before: State, after: State) -> tuple[State, bool]:
        """With the safeguard on, a re-training that does not lower the objective is thrown away."""
        if not self.settings.safeguard or self.measure(after) < before.history[-1].objective:
            return after, True
        return replace(after, scores=before.scores), False

    def measure(self, state: State) -> float:
        """The objective of scores and selection, summed over classes; NaN with folds."""
        if self.settings.folds > 1:
            return float("nan")
        own = state.scores[0] if state.scores else None
        total = 0.0
        for label, bags in enumerate(self.target.positives):
            total += self.objective.without_selection(label, self.transfer, own)
            if len(bags):
                unary, pairs = mixed_scores(self.target, self.transfer, own, label, self.settings)
                total += energy(unary, pairs, self.settings, state.selection[label])
        return total

    def _note(self, state: State, number: int, step: str, changed: int, start: float, *, kept: bool = True) -> State:
        entry = HalfStep(number, step, self.measure(state), changed, kept, time.perf_counter() - start)
        self.say(f"round {number}, {step}: {changed} changed, objective {entry.objective:.6g}, {entry.seconds:.1f} s")
        return replace(state, history=(*state.history, entry))


def _selection(results: Sequence[Relocalization | None]) -> Selection:
    none = torch.zeros(0, dtype=torch.int64)
    return tuple(none if result is None else result.selection.cpu() for result in results)
