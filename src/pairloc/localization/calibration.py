"""Calibration of the confidence: source classes play the target for scores that were learned without their images."""

from dataclasses import dataclass

import numpy as np
import torch

from pairloc.bags.store import BagStore
from pairloc.boxes import iou
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.localization.confidence import Calibration
from pairloc.localization.engine import MEMORY, learn_source, localize_target
from pairloc.localization.result import Localization
from pairloc.localization.transfer import NoObjectsError
from pairloc.settings import LocalizationSettings, TransferSettings

_ENOUGH = 100  # images of playing classes alone, below which others play too
_PLAYING = 3  # one class in so many plays the target
_IMAGES = 60  # of a playing class at most


@dataclass(frozen=True)
class _Cast:
    """Who plays the target."""

    classes: list[int]
    source: list[int]  # bags to learn from
    target: list[int]  # bags that play the target


def calibrate(
    bags: BagStore,
    truth: tuple[Dataset, GroundTruth],
    transfer: TransferSettings,
    settings: LocalizationSettings,
    *,
    device: str = "cpu",
    memory: int = MEMORY,
) -> Calibration:
    """Learn without the images of some classes, warm up on those, and fit a curve to what was right.

    A source too small for that gives the default curve.
    """
    cast = _cast(bags.dataset, settings.seed)
    if cast is None:
        return Calibration()
    try:
        learned = learn_source(bags, truth, transfer, indices=cast.source, device=device, memory=memory)
    except NoObjectsError:
        return Calibration()
    place = {label: index for index, label in enumerate(cast.classes)}
    own = bags.dataset.subset(cast.target)
    tags = tuple(tuple(place[label] for label in labels if label in place) for labels in own.tags)
    names = tuple(bags.dataset.classes[label] for label in cast.classes)
    dataset = Dataset(own.images, names, tags)
    found = localize_target(
        bags, dataset, learned, settings, method="warm-up", indices=cast.target, device=device, memory=memory
    )
    return _fitted(found, truth, cast, transfer.foreground_iou)


def _cast(dataset: Dataset, seed: int) -> _Cast | None:
    """Draw a third of the classes; their images play the target, and none of them is learned from."""
    generator = torch.Generator().manual_seed(seed)
    shown = [label for label, images in enumerate(dataset.positives) if len(images) > 1]
    if len(shown) < 2:
        return None
    order = [shown[i] for i in torch.randperm(len(shown), generator=generator).tolist()]
    playing = sorted(order[: max(1, len(shown) // _PLAYING)])
    apart = [i for i, tags in enumerate(dataset.tags) if set(tags) & set(playing)]
    alone = [i for i in apart if set(dataset.tags[i]) <= set(playing)]  # as the target's: nothing else in the image
    source = sorted(set(range(len(dataset))) - set(apart))
    wanted: set[int] = set()
    for label in playing:
        mine = [i for i in (alone if len(alone) >= _ENOUGH else apart) if label in dataset.tags[i]]
        wanted |= set(mine[:_IMAGES])
    if len(source) < 2 or len(wanted) < 2:
        return None
    return _Cast(playing, source, sorted(wanted))


def _fitted(found: Localization, truth: tuple[Dataset, GroundTruth], cast: _Cast, foreground_iou: float) -> Calibration:
    """The curve of what was found; right is a box of the class that it fits as foreground does."""
    annotated, boxes = truth
    places = annotated.places(found.dataset)
    columns: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for label, (bags, chosen) in enumerate(zip(found.positives, found.state.selection, strict=True)):
        if len(bags) < 2:
            continue
        right = []
        for bag, proposal in zip(bags.tolist(), chosen.tolist(), strict=True):
            of_class = (boxes.image == places[bag]) & (boxes.label == cast.classes[label]) & ~boxes.ignored
            box = found.proposals[bag, proposal].double().numpy()[None]
            right.append(bool((iou(box, boxes.boxes[of_class]) >= foreground_iou).any()))
        gaps = torch.nan_to_num(found.state.gaps[label].double(), nan=0.0, posinf=20.0)
        columns.append((found.agreement[label], gaps, torch.from_numpy(np.array(right))))
    if not columns:
        return Calibration()
    return Calibration.fit(*(torch.cat(column) for column in zip(*columns, strict=True)))
