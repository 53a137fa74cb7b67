"""Alternating optimisation (paper, section 4): warm-up, then re-train and re-localize in turn on one objective."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pairloc.localization.descent import Curve
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.objective import Objective
from pairloc.localization.problems import energy, mixed_scores, relocalize_class, relocalize_held
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Selection, Target, fold_of_bags
from pairloc.settings import LearningSettings
from pairloc.sharing import ALONE, Share

Say = Callable[[str], None]


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
    gaps: tuple[Tensor, ...]  # a class: how much worse the next best proposal of each bag is (M,)
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
    settings: LearningSettings
    say: Say = lambda line: None
    after_round: Callable[[State], None] = lambda state: None
    share: Share = ALONE
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
        none = tuple(torch.zeros(len(bags), dtype=torch.int64) for bags in self.target.positives)
        state = State(none, (), fold_of_bags(self.target, self.settings.folds, self.settings.seed))
        state = self._relocalize(replace(state, gaps=tuple(map(torch.zeros_like, none))), fold=None)
        return self._note(state, 0, "re-localize", sum(map(len, none)), start)

    def round(self, state: State) -> State:
        """Re-train on the selection without each fold, then re-localize that fold with what was learned."""
        number, folds = state.n_iter + 1, range(self.settings.folds)
        start = time.perf_counter()
        scores, curves = self._retrain_folds(state, folds)
        trained, kept = self._safeguard(state, replace(state, scores=scores, curves=(*state.curves, *curves)))
        trained = self._note(trained, number, "re-train", 0, start, kept=kept)
        start, moved = time.perf_counter(), trained
        for fold in folds:
            moved = self._relocalize(moved, fold)
        changed = sum(int((a != b).sum()) for a, b in zip(moved.selection, state.selection, strict=True))
        return replace(self._note(moved, number, "re-localize", changed, start), converged=changed == 0)

    def _retrain_folds(self, state: State, folds: Sequence[int]) -> tuple[tuple[ClassScores, ...], tuple[Curve, ...]]:
        """The class scores of every fold, each trained by the process it was given to."""
        owners = self.share.owners([1.0] * len(folds))
        scores, curves = [], []
        for fold, owner in zip(folds, owners, strict=True):
            if owner == self.share.rank:
                found, curve = self._retrain(state, fold)
            else:
                found, curve = ClassScores(self.target.own.d, len(self.target.classes), self.settings), []
                found = found.to(self.target.own.device).eval()
            scores.append(found)
            curves.append(curve)
        for place, owner in enumerate(owners if self.share.world > 1 else ()):
            for tensor in scores[place].state_dict().values():
                tensor.copy_(self.share.spread(tensor, owner))
            curves[place] = _spread_curve(curves[place], owner, self.share)
        return tuple(scores), tuple(curves)

    def _retrain(self, state: State, fold: int) -> tuple[ClassScores, Curve]:
        """The class scores learned from all bags but those of a fold, and how the loss fell."""
        number = state.n_iter + 1
        seen = state.fold != fold if self.settings.folds > 1 else torch.ones_like(state.fold, dtype=torch.bool)
        seed = self.settings.seed + 1000 * number + fold
        scores, curve = retrain(self.target, state.selection, self.settings, allowed=seen, seed=seed)
        if curve:
            best = min(curve, key=lambda entry: entry["held-out loss"])
            loss, step = best["held-out loss"], best["step"]
            self.say(f"round {number}, fold {fold + 1}: held-out loss {loss:.4f} after {step:.0f} steps")
        return scores, curve

    def _relocalize(self, state: State, fold: int | None) -> State:
        """Select anew in the bags of a fold, by scores that never saw them; in all bags without folds or before."""
        selection, gaps = list(state.selection), list(state.gaps)
        owners = self.share.owners([float(len(bags)) ** 2 for bags in self.target.positives])
        mine = [
            label for label, owner in enumerate(owners) if owner == self.share.rank and self._asks(state, label, fold)
        ]
        for label, coming in itertools.zip_longest(mine, mine[1:]):
            selection[label], gaps[label] = self._relocalize_class(state, label, fold, coming)
        for label, owner in enumerate(owners if self.share.world > 1 else ()):
            selection[label] = self.share.spread(selection[label], owner)
            gaps[label] = self.share.spread(gaps[label].double(), owner)
        return replace(state, selection=tuple(selection), gaps=tuple(gaps))

    def _asks(self, state: State, label: int, fold: int | None) -> bool:
        """Whether a class has a bag to select in."""
        folds = state.fold[self.target.positives[label]]
        return bool(len(folds)) and (fold is None or self.settings.folds == 1 or bool((folds == fold).any()))

    def _relocalize_class(
        self, state: State, label: int, fold: int | None, coming: int | None
    ) -> tuple[Tensor, Tensor]:
        """The selection and the gaps of a class; the features of the one to come are read meanwhile."""
        bags, before, gaps = self.target.positives[label], state.selection[label], state.gaps[label]
        own = state.scores[fold] if fold is not None and state.scores else None
        held = state.fold[bags] == fold if fold is not None and self.settings.folds > 1 else None
        unary, pairs = mixed_scores(self.target, self.transfer, own, label, self.settings)
        if coming is not None:
            self.target.expect(coming, own=own is not None)
        if held is not None:
            chosen, new = relocalize_held(unary, pairs, self.settings, before, held)
            return chosen, torch.where(held, new, gaps)
        known = None if fold is None else before
        return relocalize_class(unary, pairs, self.settings, known, self.settings.seed + label)

    def _safeguard(self, before: State, after: State) -> tuple[State, bool]:
        """With the safeguard on, a re-training that does not lower the objective is thrown away."""
        last = before.history[-1].objective
        new = self.measure(after) if self.settings.safeguard else None
        if new is None or last is None or new < last:
            return after, True
        return replace(after, scores=before.scores), False

    def measure(self, state: State) -> float | None:
        """The objective of scores and selection, summed over classes."""
        if self.settings.folds > 1:
            return None
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
        measured = "" if entry.objective is None else f", objective {entry.objective:.6g}"
        self.say(f"round {number}, {step}: {changed} changed{measured}, {entry.seconds:.1f} s")
        return replace(state, history=(*state.history, entry))


def _spread_curve(curve: Curve, owner: int, share: Share) -> Curve:
    """The owner's curve."""
    names = ("step", "loss", "held-out loss")
    length = int(share.spread(torch.tensor([len(curve)]), owner))
    rows = torch.tensor([[row[name] for name in names] for row in curve] or [[0.0] * 3] * length, dtype=torch.float64)
    rows = share.spread(rows.reshape(length, 3), owner) if length else rows
    return [dict(zip(names, row, strict=True)) for row in rows.tolist()] if length else []
