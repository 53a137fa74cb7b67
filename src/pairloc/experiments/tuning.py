"""Settings chosen on source classes that play the target: their boxes are taken away, and asked for afterwards.

The target's own truth is never looked at. What the proposer learned of the playing classes it has learned, though: the
figures are for comparing settings with each other, not with the target's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from pairloc.bags.store import BagStore
from pairloc.bags.tensors import Bags
from pairloc.boxes import Ints
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.evaluation.corloc import corloc, localized
from pairloc.localization.methods import run_method, settings_of
from pairloc.localization.refining import refined
from pairloc.localization.target import Target, scored_boxes
from pairloc.localization.transfer import label_proposals, learn_transfer
from pairloc.settings import LearningSettings, TransferSettings

_PURE = 150  # images with boxes of the playing classes alone, below which others are taken too

# What is tried, in this order: the best value of each is kept for the next. The method says what it is judged by.
SEARCH: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("transfer.geometry", (False, True), "warm-up-unary"),
    ("transfer.unary", ("sampled", "exact"), "warm-up-unary"),
    ("transfer.foreground_iou", (0.5, 0.6, 0.7), "warm-up"),
    ("transfer.relation", ("paper", "cosine"), "warm-up"),
    ("transfer.features", ("transfer", "both"), "warm-up"),
    ("learning.largest", (1.0, 0.9), "warm-up"),
    ("learning.oversize", (0.0, 3.0), "warm-up"),
    ("learning.alpha", (0.5, 1.0, 2.0, 4.0), "warm-up"),
    ("learning.k", (4, 8), "warm-up"),
    ("learning.unary", ("sampled", "exact"), "full"),
    ("learning.features", ("class", "both"), "full"),
    ("learning.geometry", (False, True), "full"),
    ("learning.foreground_iou", (0.5, 0.6, 0.7), "full"),
    ("learning.lambda1", (0.25, 0.5, 0.75, 1.0), "full"),
    ("learning.lambda2", (0.25, 0.5, 0.75), "full"),
    ("learning.rivals", (0.0, 1.0), "full"),
    ("learning.rounds", (1, 3), "full"),
    ("learning.refine", (0.0, 0.4, 0.5), "full"),
)


@dataclass(frozen=True)
class Draw:
    """Source classes that play the target, and the images of both sides."""

    classes: Ints  # playing the target
    source: list[int]  # images to learn the transfer scores from
    target: list[int]  # images tagged with playing classes


@dataclass(frozen=True)
class Tried:
    """A setting's value and what it did: CorLoc on the playing classes, mean over draws."""

    key: str
    value: object
    method: str
    corloc50: float
    corloc70: float

    @property
    def merit(self) -> float:
        """What settings are chosen by."""
        return (self.corloc50 + self.corloc70) / 2


def draw_classes(dataset: Dataset, count: int, seed: int) -> Draw:
    """Draw classes to play the target, and share the images out: none is on both sides.

    As in the paper's COCO protocol the target's images show playing classes alone; where those are too few, half of all
    images with a playing class are taken.
    """
    random = np.random.default_rng([seed, 7])
    shown = [c for c, images in enumerate(dataset.positives) if len(images) >= 4]
    if len(shown) <= count:
        raise InputError(f"the source has {len(shown)} classes with four images or more: too few to hold {count} out")
    classes = np.sort(random.permutation(shown)[:count])
    playing = set(classes.tolist())
    target = [i for i, tags in enumerate(dataset.tags) if tags and set(tags) <= playing]
    if len(target) < _PURE:
        mixed = [i for i, tags in enumerate(dataset.tags) if set(tags) & playing]
        target = sorted(random.permutation(mixed)[: max(len(mixed) // 2, 1)].tolist())
    return Draw(classes, sorted(set(range(len(dataset))) - set(target)), target)


class Game:
    """One draw: its two sides, and the truth of the playing classes."""

    def __init__(self, store: BagStore, source: tuple[Dataset, GroundTruth], draw: Draw, device: str) -> None:
        self.store, self.draw, self.device = store, draw, device
        annotated, truth = source
        playing = np.isin(truth.label, draw.classes)
        self.source = (annotated, truth.where(~playing))
        place = {int(c): index for index, c in enumerate(draw.classes)}
        mine = store.dataset.subset(draw.target)
        tags = tuple(tuple(sorted(place[t] for t in own if t in place)) for own in mine.tags)
        self.dataset = Dataset(mine.images, tuple(store.dataset.classes[c] for c in draw.classes), tags)
        where = np.array([-1 if p is None else p for p in mine.places(annotated)], dtype=np.int64)
        labels = np.full(len(annotated.classes), -1)
        labels[draw.classes] = np.arange(len(draw.classes))
        self.truth = truth.relabelled(where, labels)
        self._kept: dict[str, Any] = {}

    def play(self, method: str, transfer: TransferSettings, learning: LearningSettings) -> tuple[float, float]:
        """CorLoc@0.5 and @0.7 of a method on the playing classes."""
        scores = self._once(f"transfer {transfer}", lambda: self._learn(transfer))
        target = self._once(
            f"target {transfer} {learning.features} {learning.dimensions} {learning.geometry}",
            lambda: Target.from_store(
                self.store, scores, learning, indices=self.draw.target, dataset=self.dataset, device=self.device
            ),
        )
        state = run_method(method, target, scores, learning)
        boxes = scored_boxes(target, refined(target, scores, state, settings_of(method, learning)))
        found = localized(self.dataset, boxes, self.truth)
        return corloc(found, 0.5, draws=1).mean, corloc(found, 0.7, draws=1).mean

    def _learn(self, settings: TransferSettings) -> Any:
        bags = Bags(
            self.store, settings.features, indices=self.draw.source, dimensions=settings.dimensions,
            geometry=settings.geometry, device=self.device,
        )  # fmt: skip
        return learn_transfer(bags, label_proposals(bags, *self.source, settings), settings)[0]

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]


def tune(
    games: Sequence[Game],
    transfer: TransferSettings,
    learning: LearningSettings,
    search: Sequence[tuple[str, tuple[Any, ...], str]] = SEARCH,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[TransferSettings, LearningSettings, list[Tried]]:
    """Try values key by key, keeping the best of each; the settings found and all that was tried."""
    chosen: dict[str, Any] = {"transfer": transfer, "learning": learning}
    tried: list[Tried] = []
    for key, values, method in search:
        section, name = key.split(".")
        results = []
        for value in values:
            try:
                settings = chosen | {section: _changed(chosen[section], name, value)}
            except ValidationError:
                say(f"{key} = {value}: contradicts the other settings, not tried")
                continue
            found = [game.play(method, settings["transfer"], settings["learning"]) for game in games]
            at50, at70 = np.mean(found, axis=0).tolist()
            results.append(Tried(key, value, method, at50, at70))
            say(f"{key} = {value}, {method}: CorLoc@0.5 {100 * at50:.1f}, @0.7 {100 * at70:.1f}")
        tried += results
        if not results:
            continue
        best = max(results, key=lambda entry: entry.merit)
        chosen[section] = _changed(chosen[section], name, best.value)
    return chosen["transfer"], chosen["learning"], tried


def _changed(settings: Any, name: str, value: object) -> Any:
    changes = {name: value}
    if name == "foreground_iou" and hasattr(settings, "background_iou"):
        changes["background_iou"] = min(settings.background_iou, value)
    return type(settings).model_validate(settings.model_dump() | changes)
