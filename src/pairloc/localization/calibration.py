"""Calibration of the confidence on playing classes: source classes whose images the scores were not trained on."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from pairloc.bags.store import BagStore
from pairloc.boxes import iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.localization.combination import Combination
from pairloc.localization.confidence import Calibration
from pairloc.localization.engine import MEMORY, learn_source, localize_target
from pairloc.localization.result import Localization
from pairloc.localization.transfer import NoObjectsError
from pairloc.settings import LocalizationSettings, TransferSettings

_MIN_CLEAN = 100  # with fewer clean images of the playing classes, cluttered ones are used too
_PLAYING_PART = 3  # one in this many source classes plays the target
_MAX_IMAGES = 60  # maximum number of images per playing class


@dataclass(frozen=True)
class _Split:
    """A split of the source into bags to learn from and bags that play the target."""

    classes: list[int]  # playing classes
    source: list[int]  # bags to learn from
    target: list[int]  # bags that play the target


def calibrate(
    bags: BagStore,
    truth: tuple[Dataset, GroundTruth],
    transfer: TransferSettings,
    settings: LocalizationSettings,
    *,
    combination: Combination | None = None,
    device: str = "cpu",
    memory: int = MEMORY,
) -> Calibration:
    """Fit the calibration curve of the confidence on playing classes.

    Transfer scores are learned without the images of the playing classes, a warm-up localizes those images, and a
    curve is fitted to which of its boxes are correct. With a `combination` the warm-up weighs evidence, as it will for
    the target, but none of known classes, since the proposer may know the playing ones. A source that is too small
    gives the default curve.
    """
    split = _draw_split(bags.dataset, settings.seed)
    if split is None:
        return Calibration()
    try:
        learned = learn_source(bags, truth, transfer, indices=split.source, device=device, memory=memory)
        learned = replace(learned, combination=combination)
    except NoObjectsError:
        return Calibration()
    new_label = {label: index for index, label in enumerate(split.classes)}
    playing = bags.dataset.subset(split.target)
    tags = tuple(tuple(new_label[label] for label in labels if label in new_label) for labels in playing.tags)
    names = tuple(bags.dataset.classes[label] for label in split.classes)
    dataset = Dataset(playing.images, names, tags)
    found = localize_target(
        bags, dataset, learned, settings, method="warm-up", indices=split.target, device=device, memory=memory
    )
    return _fit(found, truth, split, transfer.foreground_iou)


def _draw_split(dataset: Dataset, seed: int) -> _Split | None:
    """Draw a third of the classes to play the target; no image that shows one of them is trained on."""
    generator = torch.Generator().manual_seed(seed)
    usable = [label for label, images in enumerate(dataset.positives) if len(images) > 1]
    if len(usable) < 2:
        return None
    order = [usable[i] for i in torch.randperm(len(usable), generator=generator).tolist()]
    playing = sorted(order[: max(1, len(usable) // _PLAYING_PART)])
    with_playing = [i for i, tags in enumerate(dataset.tags) if set(tags) & set(playing)]
    pure = [i for i in with_playing if set(dataset.tags[i]) <= set(playing)]  # show nothing else, as in the target
    source = sorted(set(range(len(dataset))) - set(with_playing))
    wanted: set[int] = set()
    for label in playing:
        of_class = [i for i in (pure if len(pure) >= _MIN_CLEAN else with_playing) if label in dataset.tags[i]]
        wanted |= set(of_class[:_MAX_IMAGES])
    if len(source) < 2 or len(wanted) < 2:
        return None
    return _Split(playing, source, sorted(wanted))


def _fit(found: Localization, truth: tuple[Dataset, GroundTruth], split: _Split, foreground_iou: float) -> Calibration:
    """Fit the curve to a localization; a box is correct if it overlaps one of its class by foreground_iou."""
    annotated, boxes = truth
    rows = annotated.indices_of(found.dataset)
    columns: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for label, (bags, chosen) in enumerate(zip(found.positives, found.state.selection, strict=True)):
        if len(bags) < 2:
            continue
        correct = []
        for bag, proposal in zip(bags.tolist(), chosen.tolist(), strict=True):
            of_class = (boxes.image == rows[bag]) & (boxes.label == split.classes[label]) & ~boxes.ignored
            box = found.proposals[bag, proposal].double().numpy()[None]
            correct.append(bool((iou(box, boxes.boxes[of_class]) >= foreground_iou).any()))
        gaps = torch.nan_to_num(found.state.gaps[label].double(), nan=0.0, posinf=20.0)
        columns.append((found.agreement[label], gaps, torch.from_numpy(np.array(correct))))
    if not columns:
        return Calibration()
    return Calibration.fit(*(torch.cat(column) for column in zip(*columns, strict=True)))
