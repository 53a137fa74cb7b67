"""Alternating optimisation (paper, section 4): warm-up, then re-train and re-localize in turn on one objective."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.executors import Executor, Serial
from pairloc.localization.class_view import ClassView
from pairloc.localization.decision import expected_reward
from pairloc.localization.descent import Curve
from pairloc.localization.evidence import Evidence
from pairloc.localization.exclusion import keep_apart
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.objective import Objective
from pairloc.localization.retrain import retrain
from pairloc.localization.target import LargestFirst, Selection, Target, fold_of_bags
from pairloc.settings import EnergySettings, LocalizationSettings

Log = Callable[[str], None]
_SAME_IOU = 0.5  # proposals with a higher IoU count as the same box


def silent(line: str) -> None:
    """Discard a log line."""


@dataclass(frozen=True)
class HalfStep:
    """The state after a re-training or a re-localization."""

    round: int  # 0 is the warm-up
    step: str  # "re-train" or "re-localize"
    objective: float | None  # summed over classes; None with folds, which have no common objective
    changed: int  # number of bags whose selected proposal changed
    kept: bool  # False if the safeguard discarded the re-training
    seconds: float


@dataclass(frozen=True)
class State:
    """Everything the next round needs, and the results so far."""

    selection: Selection
    gaps: tuple[Tensor, ...]  # for every class (M,): cost of switching each bag to its next-best proposal
    fold: Tensor  # (N,) fold of every bag
    probability: tuple[Tensor, ...] = ()  # for every class (M,): of the selected box, by the scores it was selected by
    scores: tuple[ClassScores, ...] = ()  # one per fold
    history: tuple[HalfStep, ...] = ()
    curves: tuple[Curve, ...] = ()  # training curves, ordered by round, then by fold
    converged: bool = False  # True if the last round changed no selection

    @property
    def n_iter(self) -> int:
        """Number of completed rounds."""
        return max((step.round for step in self.history), default=0)


@dataclass
class Alternation:
    """The alternating loop: `run` calls `warm_up` once and `round` until nothing changes."""

    target: Target
    transfer: TransferScores
    settings: LocalizationSettings
    energy: EnergySettings
    executor: Executor = field(default_factory=Serial)
    log: Log = silent
    after_round: Callable[[State], None] = lambda state: None
    evidence: tuple[Evidence | None, ...] | None = None  # for every class; None for the paper's sum
    objective: Objective = field(init=False)

    def __post_init__(self) -> None:
        self.objective = Objective(self.target, self.energy, self.settings.seed)

    def run(self, state: State | None = None, rounds: int | None = None) -> State:
        """Warm up, then re-train and re-localize until nothing changes or the number of rounds is reached.

        With a `state`, the loop resumes after the last round of that state.
        """
        rounds = self.settings.rounds if rounds is None else rounds
        if state is None:
            state = self.warm_up()
            self.after_round(state)
        while state.n_iter < rounds and not state.converged:
            state = self.round(state)
            self.after_round(state)
        return state

    def warm_up(self) -> State:
        """Run the first re-localization, with the transfer scores alone (lambda1 = lambda2 = 1)."""
        unselected = tuple(torch.zeros(len(bags), dtype=torch.int64) for bags in self.target.positives)
        fold = fold_of_bags(self.target, self.settings.folds, self.settings.seed)
        return self.relocalize(State(unselected, tuple(map(torch.zeros_like, unselected)), fold), 0)

    def round(self, state: State) -> State:
        """Re-train without each fold, then re-localize that fold with the scores learned from the others."""
        number = state.n_iter + 1
        return self.relocalize(self.retrain(state, number), number)

    def retrain(self, state: State, number: int) -> State:
        """Learn class scores from the selection: one set per fold, trained on the bags of the other folds."""
        start = time.perf_counter()
        _ = self.target.class_bags  # load the features once, before the tasks start
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
        return self._record(after, number, "re-train", 0, start, kept=kept)

    def relocalize(self, state: State, number: int) -> State:
        """Select a proposal in every bag, with class scores that were not trained on it."""
        start = time.perf_counter()
        task = Relocalize(self.target, self.transfer, self.settings, self.energy, state, self.evidence)
        results = self.executor.map(task, range(len(self.target.classes)))
        selection, gaps, probability, costs = zip(*results, strict=True)
        if self.settings.exclusion_iou < 1:
            selection = keep_apart(self.target, selection, costs, self.settings.exclusion_iou)
        changed = sum(int((a != b).sum()) for a, b in zip(selection, state.selection, strict=True))
        converged = bool(state.scores) and not changed
        updated = replace(state, selection=selection, gaps=gaps, probability=probability, converged=converged)
        return self._record(updated, number, "re-localize", changed if number else sum(map(len, selection)), start)

    def measure(self, state: State) -> float | None:
        """Return the objective of the scores and the selection, summed over classes.

        None with folds or learned evidence, for which the paper's objective is not defined.
        """
        if self.settings.folds > 1 or self.evidence is not None:
            return None
        class_scores = state.scores[0] if state.scores else None
        total = 0.0
        for label, selection in enumerate(state.selection):
            total += self.objective.without_selection(label, self.transfer, class_scores)
            if len(selection):
                total += (
                    ClassView(self.target, self.transfer, label, self.settings, self.energy)
                    .problem(class_scores)
                    .energy(selection)
                )
        return total

    def _safeguard(self, before: State, after: State) -> tuple[State, bool]:
        """Discard a re-training that does not lower the objective, if the safeguard is on."""
        previous = before.history[-1].objective
        current = self.measure(after) if self.settings.safeguard else None
        if current is None or previous is None or current < previous:
            return after, True
        return replace(after, scores=before.scores), False

    def _record(self, state: State, number: int, step: str, changed: int, start: float, *, kept: bool = True) -> State:
        seconds = time.perf_counter() - start  # without measuring
        entry = HalfStep(number, step, self.measure(state), changed, kept, seconds)
        measured = "" if entry.objective is None else f", objective {entry.objective:.6g}"
        trained = "re-trained on the boxes" + ("" if kept else ", discarded: the objective did not decrease")
        selected = f"{changed} boxes changed" if number else f"{changed} boxes"
        line = f"round {number}: " if number else "initial selection: "
        line += trained if step == "re-train" else selected
        self.log(f"{line}{measured}, {entry.seconds:.1f} s")
        return replace(state, history=(*state.history, entry))


@dataclass(frozen=True)
class Retrain:
    """A task: re-train the class scores without one fold."""

    target: Target
    settings: LocalizationSettings
    energy: EnergySettings
    state: State
    number: int

    def __call__(self, fold: int) -> tuple[ClassScores, Curve]:
        """Return the class scores trained on all bags outside `fold`, and their training curve."""
        state, folds = self.state, self.settings.folds
        training_bags = state.fold != fold if folds > 1 else torch.ones_like(state.fold, dtype=torch.bool)
        seed = self.settings.seed + 1000 * self.number + fold
        previous = state.scores[fold] if state.scores else None
        return retrain(
            self.target,
            state.selection,
            self.settings,
            self.energy,
            allowed=training_bags,
            previous=previous,
            trust=state.probability or None,
            seed=seed,
        )


@dataclass(frozen=True)
class Relocalize(LargestFirst):
    """A task: select a proposal in every positive bag of one class."""

    target: Target
    transfer: TransferScores
    settings: LocalizationSettings
    energy: EnergySettings
    state: State
    evidence: tuple[Evidence | None, ...] | None = None

    def __call__(self, label: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the selection (M,) of class `label`, its gaps (M,), its probabilities (M,) and all costs (M, B).

        The folds are solved one after the other; the selected proposals of the other folds are anchors. With learned
        evidence the costs are negative logarithms of the expected reward, which then selects (`decision.py`).
        """
        state, settings = self.state, self.settings
        selection, gaps = state.selection[label].clone(), state.gaps[label].double()
        probability, costs = torch.ones(len(selection)), torch.zeros(len(selection), self.target.bags.size)
        if not len(selection):
            return selection, gaps, probability, costs
        evidence = None if self.evidence is None else self.evidence[label]
        class_view = ClassView(self.target, self.transfer, label, settings, self.energy, evidence=evidence)
        fold_of_bag = state.fold[self.target.positives[label]]
        previous = selection if state.scores else None
        solver = settings.solver
        for group, view in class_view.groups():
            for f, class_scores in enumerate(state.scores or (None,)):
                held_out = (
                    fold_of_bag[group] == f if len(state.scores) > 1 else torch.ones_like(group, dtype=torch.bool)
                )
                rows = group[held_out]
                if not len(rows):
                    continue
                problem = view.problem(class_scores, None if previous is None else previous[group], held_out)
                solution = problem.solve(
                    "mini-problems", k=solver.k, solver=solver.name,
                    iterations=solver.iterations, epochs=solver.epochs, seed=settings.seed + label,
                    previous=None if previous is None else previous[rows],
                )  # fmt: skip
                chosen, cost, gaps[rows] = solution.selection, solution.cost, solution.gaps
                if evidence is not None:  # only then are scores log odds
                    boxes = class_view.boxes[rows.to(class_view.boxes.device)]
                    reward = expected_reward(cost, boxes)
                    chosen = reward.argmax(dim=1)
                    probability[rows] = probability_of(chosen, cost, boxes)
                    cost = -reward.log()
                selection[rows], costs[rows] = chosen.cpu(), cost.float().cpu()
        return selection, gaps, probability, costs


def probability_of(selection: Tensor, costs: Tensor, boxes: Tensor) -> Tensor:
    """Probability (M,) of the selected boxes among all (M, B, 4); `costs` (M, B) are negative log odds.

    Proposals that overlap the selected one count as the same box.
    """
    chosen = boxes.gather(1, selection[:, None, None].expand(-1, 1, 4))
    same = iou(chosen, boxes)[:, 0] > _SAME_IOU  # (M, B)
    return (torch.softmax(-costs, dim=1) * same).sum(dim=1).clamp(max=1).float().cpu()
