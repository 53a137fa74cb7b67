"""Learning on playing classes how much each evidence term counts.

Source classes that the proposer and the transfer scores were never taught play the target, so their boxes are known.
The terms are computed as they are for a target: for the warm-up, and with class scores after one re-training. While
learning, no class is judged by weights that were learned on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pairloc.bags.store import BagStore
from pairloc.boxes import iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.localization.alternate import Alternation, Log, State, silent
from pairloc.localization.class_view import ClassView
from pairloc.localization.combination import MIN_CLASSES, REWARDS, Combination, Example, Weighing, fit_weighing
from pairloc.localization.confidence import Calibration, agreement, evidence_signals, plain_signals
from pairloc.localization.evidence import TERMS, Evidence, Terms, all_terms, lasting_terms
from pairloc.localization.learned import Learned
from pairloc.localization.target import Target
from pairloc.settings import LocalizationSettings

_MEMORY = 8 << 30  # limit of the features of a game kept in memory, in bytes
_ALPHA = 0.1  # of 0.1, 0.3 and 1 the best on playing classes (docs/experiments/evidence.md)
_PARTS = 6  # the playing classes are divided into this many parts, each judged by weights learned on the others
# What may be missing: pair scores, and with them what recurs elsewhere; bags without the tag; known classes. A tag that
# is new has no known class of its own.
_MISSING_OF_KNOWN = ((), ("negatives",), ("pairs", "negatives"))
_MISSING = (
    *((*missing, *others, "own") for others in ((), ("known",)) for missing in _MISSING_OF_KNOWN), *_MISSING_OF_KNOWN,
)  # fmt: skip


class NothingRightError(InputError):
    """Raised if no proposal of the playing classes, or of all but some that are held out, overlaps an object."""


@dataclass(frozen=True)
class Game:
    """Images whose classes play the target, and the overlap (M, B) of the proposals of every class with its objects.

    What was `learned` must never have been taught these classes.
    """

    target: Target
    overlap: tuple[Tensor, ...]  # minus one for padding and proposals that may not be selected
    learned: Learned
    name: str = "images"  # for the log

    @classmethod
    def of(
        cls,
        bags: BagStore,
        truth: tuple[Dataset, GroundTruth],
        learned: Learned,
        settings: LocalizationSettings,
        *,
        indices: Sequence[int] | None = None,
        name: str = "images",
        device: str = "cpu",
        memory: int = _MEMORY,
    ) -> "Game":
        """Make a game of the bags of a store, or those at `indices`, tagged with playing classes alone."""
        tags = bags.dataset if indices is None else bags.dataset.subset(indices)
        learned = learned.to(device)
        target = Target.from_store(
            bags, tags, learned.scores, settings.features, known=learned.known,
            tags_as_new=settings.unary.tags_as_new, indices=indices, device=device, memory=memory, seed=settings.seed,
        )  # fmt: skip
        images = truth[0].indices_of(tags)
        overlap = []
        for label, positives in enumerate(target.positives):
            selectable = target.selectable(positives, settings.unary.max_area).cpu()
            overlap.append(_overlap(target, label, images, truth).masked_fill(~selectable, -1))
        return cls(target, tuple(overlap), learned, name)


def _overlap(target: Target, label: int, images: list[int | None], truth: tuple[Dataset, GroundTruth]) -> Tensor:
    """IoU (M, B) of the proposals of a class with the nearest of its objects."""
    annotated, objects = truth
    name, bags = target.classes[label], target.positives[label]
    shows = objects.label == (annotated.classes.index(name) if name in annotated.classes else -1)
    shows &= ~objects.ignored
    overlap = torch.zeros(len(bags), target.bags.size)
    for row, bag in enumerate(bags.tolist()):
        image = images[bag]
        boxes = objects.boxes[shows & (objects.image == (-1 if image is None else image))]
        if len(boxes):
            overlap[row] = iou(target.bags.boxes[bag].double().cpu(), torch.from_numpy(boxes)).amax(dim=1).float()
    return overlap


@dataclass(frozen=True)
class _Played:
    """One playing class of one game."""

    view: ClassView
    overlap: Tensor  # (M, B)
    terms: Terms

    @property
    def name(self) -> str:
        return self.view.target.classes[self.view.label]

    @property
    def missing(self) -> tuple[str, ...]:
        """What its lasting terms would need and there is not."""
        return tuple(sorted({term.needs for name, term in TERMS.items() if name not in self.terms.names} - {"classes"}))

    def example(self, names: Sequence[str]) -> Example:
        """The named terms of its proposals."""
        table = torch.stack([self.terms.column(name) for name in names], dim=2)
        return Example(table, self.overlap.to(table.device))


def learn_evidence(
    games: Sequence[Game],
    settings: LocalizationSettings,
    *,
    unlike: Sequence[Game] = (),
    log: Log = silent,
) -> tuple[Combination, Calibration]:
    """Learn from games how much each term counts, and what the confidence in a box is.

    `unlike` are games unlike the source, such as drawings: the confidence is learned on them too, so that it falls
    where little is right. Raises a NothingRightError (an InputError) if proposals overlap objects of no playing class,
    or of one alone, which cannot be judged by others.
    """
    first = [_played(game, settings) for game in games]
    everything = [entry for played in first for entry in played]
    names = sorted({entry.name for entry in everything})
    log(f"playing classes: {len(names)}, sets of images: {len(games)}")
    parts = [names[part::_PARTS] for part in range(min(_PARTS, len(names)))]
    # The patterns that these games need. Where the only known tag is held out, weights of new tags judge it.
    present = sorted({tuple(sorted({*entry.missing, *own})) for entry in everything for own in ((), ("own",))})
    judges = _judges(parts, lambda held: _weighings(_without(everything, held), present, with_classes=False))
    loops = [_Loop.of(played, settings, judges) for played in first]
    states = [loop.retrained() for loop in loops]
    second = [_retrained(played, state) for played, state in zip(first, states, strict=True)]
    after = [entry for played in second for entry in played]
    log("re-trained on the selected boxes")
    judges = _judges(
        parts,
        lambda held: (
            _weighings(_without(everything, held), present, with_classes=False)
            + _weighings(_without(after, held), present, with_classes=True)
        ),
    )
    weighings = _weighings(everything, _MISSING, with_classes=False) + _weighings(after, _MISSING, with_classes=True)
    combination = Combination(learned_on=", ".join(names), alpha=_ALPHA, weighings=weighings)
    rows = []
    for game, played, state in zip(games, first, states, strict=True):
        loop = _Loop.of(played, settings, judges)
        rows += loop.judged(loop.alternation.relocalize(state, 1), game.name, log)
    for game in unlike:
        played = _played(game, settings)
        loop = _Loop.of(played, settings, dict.fromkeys(game.target.classes, combination))
        rows += loop.judged(loop.alternation.relocalize(loop.retrained(), 1), game.name, log)
    signals, correct = zip(*rows, strict=True)
    columns = {name: torch.cat([entry[name] for entry in signals]) for name in signals[0]}
    return combination, Calibration.fit_signals(columns, torch.cat(correct))


def _without(played: list[_Played], held: list[str]) -> list[_Played]:
    return [entry for entry in played if entry.name not in held]


def _judges(parts: list[list[str]], weighings: Callable[[list[str]], tuple[Weighing, ...]]) -> dict[str, Combination]:
    """For every class a combination that was not learned on it."""
    judges: dict[str, Combination] = {}
    for held in parts:
        judges |= dict.fromkeys(held, Combination(learned_on="", alpha=_ALPHA, weighings=weighings(held)))
    return judges


@dataclass(frozen=True)
class _Loop:
    """The alternating loop of one game, with a combination for every class."""

    played: list[_Played]
    alternation: Alternation

    @classmethod
    def of(cls, played: list[_Played], settings: LocalizationSettings, judges: dict[str, Combination]) -> "_Loop":
        target, scores = played[0].view.target, played[0].view.transfer
        evidence: list[Evidence | None] = [None] * len(target.classes)
        for entry in played:
            evidence[entry.view.label] = Evidence(entry.terms, judges[entry.name])
        return cls(played, Alternation(target, scores, settings, settings.energy, evidence=tuple(evidence)))

    def retrained(self) -> State:
        return self.alternation.retrain(self.alternation.warm_up(), 1)

    def judged(self, state: State, name: str, log: Log) -> list[tuple[dict[str, Tensor], Tensor]]:
        """For every class the signals (M,) of its selected boxes, and which of them are right (M,).

        The mean over the classes of the share that is right is logged.
        """
        loop = self.alternation
        rows, overlaps = [], []
        for entry in self.played:
            label = entry.view.label
            evidence = None if loop.evidence is None else loop.evidence[label]
            assert evidence is not None
            view = ClassView(loop.target, loop.transfer, label, loop.settings, loop.energy, evidence=evidence)
            selection = state.selection[label]
            scores = view.conditional(state.scores, selection, state.fold[view.bags])
            signals = plain_signals(agreement(view, scores, selection, trained=True), state.gaps[label])
            signals |= evidence_signals(evidence.terms, scores, state.probability[label], selection)
            overlaps.append(entry.overlap.gather(1, selection[:, None])[:, 0])
            rows.append((signals, overlaps[-1] > min(REWARDS)))
        right = (sum(float((o > limit).double().mean()) for o in overlaps) / len(overlaps) for limit in REWARDS)
        log(f"{name}: {' / '.join(f'{share:.1%}' for share in right)} of the boxes have an IoU above 0.5 / 0.7")
        return rows


def _played(game: Game, settings: LocalizationSettings) -> list[_Played]:
    """Compute the lasting terms of every class of a game that has bags."""
    views = [ClassView(game.target, game.learned.scores, label, settings) for label in range(len(game.overlap))]
    pairs = zip(views, game.overlap, strict=True)
    return [_Played(view, overlap, lasting_terms(view)) for view, overlap in pairs if len(overlap)]


def _retrained(played: list[_Played], state: State) -> list[_Played]:
    """Add the terms of every bag from class scores that were not trained on it."""
    return [replace(entry, terms=_held_out_terms(entry, state)) for entry in played]


def _held_out_terms(entry: _Played, state: State) -> Terms:
    fold = state.fold[entry.view.bags]
    by_fold = [all_terms(entry.view, entry.terms, scores) for scores in state.scores]
    table = by_fold[0].table.clone()
    for number, terms in enumerate(by_fold[1:], start=1):
        rows = (fold == number).to(table.device)
        table[rows] = terms.table[rows]
    return Terms(by_fold[0].names, table)


def _weighings(
    played: list[_Played], patterns: Sequence[tuple[str, ...]], *, with_classes: bool
) -> tuple[Weighing, ...]:
    """Fit one weighing for every pattern of missing terms: new tags teach those of new tags, known ones the others."""
    fitted = []
    for missing in patterns:
        absent = {*missing, *(() if with_classes else ("classes",))}
        names = [name for name, term in TERMS.items() if term.needs not in absent]
        teachers = [entry for entry in played if ("own" in entry.missing) == ("own" in absent)]
        products = len({entry.name for entry in teachers}) >= MIN_CLASSES
        fitted.append(fit_weighing([entry.example(names) for entry in teachers], names, products=products))
    weighings = tuple(entry for entry in fitted if entry is not None)
    if not weighings:
        raise NothingRightError("the proposals overlap no object of the playing classes, so no evidence can be weighed")
    return weighings
