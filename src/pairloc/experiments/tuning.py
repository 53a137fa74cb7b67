"""Settings chosen on playing classes: source classes whose boxes are taken away, and asked for afterwards.

The target's own truth is never looked at. What the proposer learned of the playing classes it has learned, though: the
figures are for comparing settings with each other, not with the target's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError

from pairloc.bags.store import BagStore
from pairloc.boxes import Ints
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.evaluation.corloc import corloc, localized
from pairloc.localization.engine import learn_source, localize_target
from pairloc.localization.learned import Learned
from pairloc.presets import merged
from pairloc.settings import LocalizationSettings, TransferSettings

_PURE = 150  # images with boxes of the playing classes alone, below which others are taken too

# What is tried, in this order: the best value of each is kept for the next. The method says what it is judged by.
SEARCH: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("transfer.features.geometry", (False, True), "warm-up-unary"),
    ("transfer.unary.fit", ("sampled", "exact"), "warm-up-unary"),
    ("transfer.foreground_iou", (0.5, 0.6, 0.7), "warm-up"),
    ("transfer.pairs.kind", ("relation", "cosine"), "warm-up"),
    ("transfer.features.kind", ("transfer", "both"), "warm-up"),
    ("localization.unary.max_area", (1.0, 0.9), "warm-up"),
    ("localization.unary.area_penalty", (0.0, 3.0), "warm-up"),
    ("localization.energy.alpha", (0.5, 1.0, 2.0, 4.0), "warm-up"),
    ("localization.solver.k", (4, 8), "warm-up"),
    ("localization.unary.fit", ("sampled", "exact"), "full"),
    ("localization.features.kind", ("class", "both"), "full"),
    ("localization.features.geometry", (False, True), "full"),
    ("localization.training.foreground_iou", (0.5, 0.6, 0.7), "full"),
    ("localization.energy.lambda1", (0.25, 0.5, 0.75, 1.0), "full"),
    ("localization.energy.lambda2", (0.25, 0.5, 0.75), "full"),
    ("localization.unary.other_tag_weight", (0.0, 1.0), "full"),
    ("localization.rounds", (1, 3), "full"),
    ("localization.boxes.voting_iou", (0.0, 0.4, 0.5), "full"),
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


class PlayingTarget:
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
        self._learned: dict[TransferSettings, Learned] = {}

    def measure(self, method: str, transfer: TransferSettings, settings: LocalizationSettings) -> tuple[float, float]:
        """CorLoc@0.5 and @0.7 of a method on the playing classes."""
        if transfer not in self._learned:
            self._learned[transfer] = learn_source(
                self.store, self.source, transfer, indices=self.draw.source, device=self.device
            )
        found = localize_target(
            self.store, self.dataset, self._learned[transfer], settings, method=method, indices=self.draw.target,
            device=self.device,
        )  # fmt: skip
        result = localized(self.dataset, found.boxes, self.truth)
        return corloc(result, 0.5, draws=1).mean, corloc(result, 0.7, draws=1).mean


def tune(
    targets: Sequence[PlayingTarget],
    transfer: TransferSettings,
    localization: LocalizationSettings,
    search: Sequence[tuple[str, tuple[Any, ...], str]] = SEARCH,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[TransferSettings, LocalizationSettings, list[Tried]]:
    """Try values key by key, keeping the best of each; the settings found and all that was tried."""
    chosen: dict[str, Any] = {"transfer": transfer, "localization": localization}
    tried: list[Tried] = []
    for key, values, method in search:
        section, name = key.split(".", 1)
        results = []
        for value in values:
            try:
                settings = chosen | {section: changed(chosen[section], name, value)}
            except ValidationError:
                log(f"{key} = {value}: contradicts the other settings, not tried")
                continue
            found = [target.measure(method, settings["transfer"], settings["localization"]) for target in targets]
            at50, at70 = np.mean(found, axis=0).tolist()
            results.append(Tried(key, value, method, at50, at70))
            log(f"{key} = {value}, {method}: CorLoc@0.5 {100 * at50:.1f}, @0.7 {100 * at70:.1f}")
        tried += results
        if results:
            best = max(results, key=lambda entry: entry.merit)
            chosen[section] = changed(chosen[section], name, best.value)
    return chosen["transfer"], chosen["localization"], tried


def changed(settings: Any, name: str, value: object) -> Any:
    """Settings with another value of a key such as energy.alpha."""
    change: Any = value
    for part in reversed(name.split(".")):
        change = {part: change}
    if name == "foreground_iou":
        change["background_iou"] = min(settings.background_iou, value)
    return type(settings).model_validate(merged(settings.model_dump(), change))
