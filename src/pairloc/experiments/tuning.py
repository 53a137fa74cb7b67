"""Tuning of settings on playing classes: source classes that are treated as a target and then evaluated.

The ground truth of the target is never used. The proposer, however, may have been trained on the playing classes, so
the results are comparable with each other but not with results on the target.

Where a run weighs evidence, so does the comparison of its localization settings, with the combination that the run
learned. It was learned on classes of the same source, perhaps on those that play here: a few dozen weights that all
values share, so they favour none. Terms of known classes are left out, since the proposer may know the playing ones.
The combination fits the transfer scores of the run. Other transfer scores would be judged by weights of foreign ones,
so transfer settings, and whatever is compared after one of them has changed, are compared with mixed scores (lambda2).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from pairloc.bags.store import BagStore
from pairloc.boxes import Bools, Ints
from pairloc.curation.splits import playing_images
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.evaluation.corloc import Localized, corloc, localized
from pairloc.localization.combination import Combination
from pairloc.localization.engine import learn_source, localize_target
from pairloc.localization.learned import Learned
from pairloc.presets import merged
from pairloc.settings import LocalizationSettings, TransferSettings

_IMAGES = 3000  # maximum number of playing images in a draw

# Key, values to try, and method to evaluate with. Keys are tried in this order; the best value of each is kept.
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
    """A draw of playing classes, with the images to learn from and the images that play the target."""

    classes: Ints  # playing classes
    source: list[int]  # images to learn the transfer scores from
    target: list[int]  # images tagged with playing classes
    cluttered: Bools  # (images of the target,) those that show other classes too


@dataclass(frozen=True)
class Trial:
    """A value of a setting and its CorLoc on the playing classes, averaged over kinds of images and over draws."""

    key: str
    value: object
    method: str
    corloc50: float
    corloc70: float

    @property
    def merit(self) -> float:
        """The mean of CorLoc@0.5 and @0.7, by which values are compared."""
        return (self.corloc50 + self.corloc70) / 2


def draw_classes(dataset: Dataset, count: int, seed: int) -> Draw:
    """Draw `count` classes to play the target, and split the images into disjoint source and target.

    As in the COCO protocol of the paper, the target has clean images, which show playing classes alone, and cluttered
    ones, which are held apart from the source (`playing_images`). Raises an InputError if the source has too few
    classes or images.
    """
    random = np.random.default_rng([seed, 7])
    usable = [c for c, images in enumerate(dataset.positives) if len(images) >= 4]
    if len(usable) <= count:
        raise InputError(
            f"the source has {len(usable)} classes with four or more images, too few to hold {count} out; choose fewer"
        )
    classes = np.sort(random.permutation(usable)[:count])
    drawn = playing_images(dataset, classes.tolist(), _IMAGES, random)
    source, target = (np.flatnonzero(mask).tolist() for mask in (drawn.source, drawn.target))
    if not source or not target:
        raise InputError(f"the source has {len(dataset)} images, too few to hold {count} classes out; choose fewer")
    return Draw(classes, source, target, drawn.cluttered[drawn.target])


class PlayingTarget:
    """One draw of playing classes as a target, to measure methods and settings on.

    With a `combination`, evidence is weighed by it where the settings say so, without terms of known classes.

    >>> draw = draw_classes(store.dataset, count=15, seed=0)
    >>> PlayingTarget(store, (source, truth), draw, "cpu").measure("full", transfer_settings, localization_settings)
    """

    def __init__(
        self,
        store: BagStore,
        source: tuple[Dataset, GroundTruth],
        draw: Draw,
        device: str,
        combination: Combination | None = None,
    ) -> None:
        self.store, self.draw, self.device, self.combination = store, draw, device, combination
        annotated, truth = source
        playing = np.isin(truth.label, draw.classes)
        self.source = (annotated, truth.where(~playing))
        new_label = {int(c): index for index, c in enumerate(draw.classes)}
        subset = store.dataset.subset(draw.target)
        tags = tuple(tuple(sorted(new_label[t] for t in labels if t in new_label)) for labels in subset.tags)
        self.dataset = Dataset(subset.images, tuple(store.dataset.classes[c] for c in draw.classes), tags)
        rows = np.array([-1 if row is None else row for row in subset.indices_of(annotated)], dtype=np.int64)
        labels = np.full(len(annotated.classes), -1)
        labels[draw.classes] = np.arange(len(draw.classes))
        self.truth = truth.relabelled(rows, labels)
        self._learned: dict[TransferSettings, Learned] = {}

    def measure(self, method: str, transfer: TransferSettings, settings: LocalizationSettings) -> tuple[float, float]:
        """Return CorLoc@0.5 and @0.7 of a method on the playing classes.

        Each is the mean of clean and cluttered images if there are both.
        """
        if transfer not in self._learned:
            learned = learn_source(self.store, self.source, transfer, indices=self.draw.source, device=self.device)
            self._learned[transfer] = replace(learned, combination=self.combination)
        found = localize_target(
            self.store, self.dataset, self._learned[transfer], settings, method=method, indices=self.draw.target,
            device=self.device,
        )  # fmt: skip
        result = localized(self.dataset, found.boxes, self.truth)
        parts = [part for kind in (False, True) if len((part := self._of_kind(result, cluttered=kind)).image)]
        at50, at70 = (float(np.mean([corloc(part, iou, draws=1).mean for part in parts])) for iou in (0.5, 0.7))
        return at50, at70

    def _of_kind(self, result: Localized, *, cluttered: bool) -> Localized:
        """The part of a result on clean or on cluttered images."""
        rows = self.draw.cluttered[result.image] == cluttered
        return Localized(
            result.image[rows], result.label[rows], result.overlap[rows], result.score[rows], result.classes
        )


def tune(
    targets: Sequence[PlayingTarget],
    transfer: TransferSettings,
    localization: LocalizationSettings,
    search: Sequence[tuple[str, tuple[Any, ...], str]] = SEARCH,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[TransferSettings, LocalizationSettings, list[Trial]]:
    """Tune settings key by key, keeping the best value of each; return the settings and all trials.

    The present value is kept if no other is better. Transfer settings, and everything after one of them has changed,
    are compared with mixed scores, because a learned combination fits none but the scores it was learned with.
    """
    chosen: dict[str, Any] = {"transfer": transfer, "localization": localization}
    trials: list[Trial] = []
    for key, values, method in search:
        section, name = key.split(".", 1)
        weighs = section == "localization" and chosen["transfer"] == transfer
        results = []
        for value in values:
            try:
                settings = chosen | {section: with_value(chosen[section], name, value)}
            except ValidationError:
                log(f"{key} = {value}: not tried, because it conflicts with other settings")
                continue
            try:
                compared = settings["localization"] if weighs else with_mixed_scores(settings["localization"])
                measured = [target.measure(method, settings["transfer"], compared) for target in targets]
            except InputError as error:
                log(f"{key} = {value}: not tried ({error})")
                continue
            at50, at70 = np.mean(measured, axis=0).tolist()
            results.append(Trial(key, value, method, at50, at70))
            log(f"{key} = {value}, {method}: CorLoc@0.5 {100 * at50:.1f}, @0.7 {100 * at70:.1f}")
        trials += results
        if results:
            present = value_of(chosen[section], name)
            best = max(results, key=lambda trial: (trial.merit, trial.value == present))
            chosen[section] = with_value(chosen[section], name, best.value)
    return chosen["transfer"], chosen["localization"], trials


def with_mixed_scores(settings: LocalizationSettings) -> LocalizationSettings:
    """Return a copy of settings that mixes scores as the paper does instead of weighing evidence."""
    changed: LocalizationSettings = with_value(settings, "unary.combination", "mixed")
    return changed


def value_of(settings: Any, name: str) -> object:
    """Return the value of a key such as energy.alpha."""
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def with_value(settings: Any, name: str, value: object) -> Any:
    """Return a copy of settings with another value of a key such as energy.alpha.

    Setting foreground_iou also lowers background_iou to it, if necessary.
    """
    change: Any = value
    for part in reversed(name.split(".")):
        change = {part: change}
    if name == "foreground_iou":
        change["background_iou"] = min(settings.background_iou, value)
    return type(settings).model_validate(merged(settings.model_dump(), change))
