"""Learning how much evidence counts on a source of one's own: some of its classes play the target.

A second proposer is trained without the playing classes, since one that was taught them would recognise them. What is
learned with it (`localization/playing.py`) holds for the proposer that was taught all classes and meets new ones.
Training it takes long and weighing does not, so these are two steps: `play_target` and `weigh_evidence`.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pairloc.bags.store import BagStore
from pairloc.curation.splits import Annotated, PlayingSplit, split_playing
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.names import known_class
from pairloc.detector.model import CHECKPOINT
from pairloc.errors import InputError
from pairloc.io import MANIFEST
from pairloc.localization.combination import Combination
from pairloc.localization.confidence import Calibration
from pairloc.localization.known import KnownClasses
from pairloc.localization.learned import EVIDENCE, TRANSFER, Learned
from pairloc.localization.playing import Game, NothingRightError, learn_evidence
from pairloc.localization.transfer import NoObjectsError
from pairloc.platform import learning_device
from pairloc.runs.learning import Teacher
from pairloc.settings import EvidenceSettings, LocalizationSettings
from pairloc.weights import PACKAGED, weights_folder

_FEW_CLASSES = 6  # with fewer, every class plays alone
_MIN_OBJECTS = 100  # tags of playing classes whose object a proposal covers
_BAGS, _SOURCE = "playing", "source"  # folders of a draw
_KINDS = 3  # a draw is played with all images, with the clean ones alone and with the cluttered ones alone


def play_target(
    truth: Annotated,
    settings: EvidenceSettings,
    teacher: Teacher,
    folder: Path,
    log: Callable[[str], None],
    *,
    draw: int | None = None,
) -> None:
    """Train what is never taught the playing classes of an annotated source, and extract their bags with it.

    Every draw of playing classes gets a folder of its own with a proposer, transfer scores and bags. `draw` (1, 2, ...)
    does that draw alone; what it writes does not depend on the number of draws. Few classes, which play one after the
    other, all belong to the first. An interrupted call resumes. Nothing is trained if the settings name `weights`, or
    if the whole source is too small.
    """
    if sum(map(len, truth[0].tags)) < _MIN_OBJECTS:
        return
    splits = _splits(truth, settings)
    all_first = settings.weights is not None or len(_usable(truth[0])) < _FEW_CLASSES
    taught = None if settings.weights is None else weights_folder(str(settings.weights))
    for number, split in enumerate(splits, start=1):
        part, playing = folder / f"draw-{number}", split.target[0]
        if draw is not None and draw != (1 if all_first else number):
            continue
        log(f"playing classes, draw {number} of {len(splits)}: {', '.join(playing.classes)}")
        if not (part / _BAGS / MANIFEST).is_file():
            if taught is not None:
                teacher.bags(playing, taught, part / _BAGS)
            elif (~split.source[1].ignored).any():
                _learn_without(split, teacher, part)
        shutil.rmtree(part / _SOURCE, ignore_errors=True)  # large, and of no further use
        (part / "proposer" / CHECKPOINT).unlink(missing_ok=True)


def _learn_without(split: PlayingSplit, teacher: Teacher, part: Path) -> None:
    """Train proposer and transfer scores on what is left of the source, and extract the playing bags."""
    held = min(teacher.proposer.held_classes, len(split.source[0].classes) - 1)  # some are left to train on
    fewer = replace(teacher, proposer=teacher.proposer.model_copy(update={"held_classes": held}))
    fewer.train(split.source, part)
    try:
        learned = fewer.scores(split.source, fewer.source_bags(split.source, part, part / _SOURCE), part)
    except NoObjectsError:
        return
    learned.scores.save(part / TRANSFER)
    fewer.bags(split.target[0], part, part / _BAGS)


def weigh_evidence(
    truth: Annotated,
    settings: EvidenceSettings,
    teacher: Teacher,
    localization: LocalizationSettings,
    folders: Sequence[Path],
    log: Callable[[str], None],
) -> tuple[Combination, Calibration | None]:
    """Learn how much each evidence term counts, and the confidence, from what `play_target` wrote into folders.

    A source that is too small takes the combination of the packaged weights, and None for the confidence.
    """
    splits = _splits(truth, settings)
    if why := _too_small(splits):
        return _packaged(why, log), None
    games, covered = list[Game](), Counter[str]()
    for number, split in enumerate(splits, start=1):
        parts = [folder / f"draw-{number}" for folder in folders]
        part = next((part for part in parts if (part / _BAGS / MANIFEST).is_file()), None)
        if part is None:
            continue  # without these classes nothing could be learned
        learned = Learned.load(part if settings.weights is None else weights_folder(str(settings.weights)))
        memory = teacher.memory // (_KINDS * len(splits))
        of_draw = _games(split, BagStore(part / _BAGS), learned, localization, teacher.device, memory)
        games += of_draw
        for game in of_draw[:1]:  # that of all images
            for name, overlap in zip(game.target.classes, game.overlap, strict=True):
                covered[name] += int((overlap > 0.5).any(dim=1).sum())
    if covered.total() < _MIN_OBJECTS:
        why = f"proposals cover the object of only {covered.total()} tags of playing classes"
        return _packaged(f"{why} ({_MIN_OBJECTS} are needed)", log), None
    try:
        return learn_evidence(games, localization, log=log)
    except NothingRightError:
        names = ", ".join(name for name, count in covered.items() if count)
        return _packaged(f"no class but {names} can be learned from", log), None


def draw_playing(dataset: Dataset, settings: EvidenceSettings) -> list[list[int]]:
    """Draw the classes that play the target together: a third of the classes, or one after the other if few."""
    usable = _usable(dataset)
    if len(usable) < 2:
        return []
    if len(usable) < _FEW_CLASSES:
        return [[label] for label in usable]
    draws, order = [], list[int]()
    count = min(settings.classes, len(usable) // 3)
    generator = np.random.default_rng(settings.seed)
    for _ in range(settings.draws):
        if len(order) < count:  # every class plays once before one plays twice
            again = generator.permutation(usable).tolist()
            order += sorted(again, key=order.__contains__)  # those that are still to play come last
        draws.append(sorted(order[:count]))
        order = order[count:]
    return draws


def never_taught(classes: Sequence[str], weights: Path) -> list[int]:
    """Return which classes of a source the proposer of some weights was not taught, by name or a listed alias.

    Raises an InputError if there is none, or if the proposer tells objects from background but no classes.
    """
    folder = weights_folder(str(weights))
    known = KnownClasses.load(folder / "proposer")
    if known is None:
        raise InputError(
            f"{folder}: its proposer names no classes, so nobody can say which play; unset evidence.weights"
        )
    playing = [label for label, name in enumerate(classes) if known_class(name, known.names) is None]
    if not playing:
        raise InputError(f"{folder}: was taught every class of the source, so none can play; unset evidence.weights")
    return playing


def _usable(dataset: Dataset) -> list[int]:
    return [label for label, images in enumerate(dataset.positives) if len(images) > 1]


def _splits(truth: Annotated, settings: EvidenceSettings) -> list[PlayingSplit]:
    """Split the source for every draw of playing classes; the same settings give the same splits."""
    dataset = truth[0]
    if settings.weights is None:
        draws = draw_playing(dataset, settings)
    else:
        usable = set(_usable(dataset))
        draws = [[label for label in never_taught(dataset.classes, settings.weights) if label in usable]]
    return [
        split_playing(truth, playing, settings.images, np.random.default_rng([settings.seed, number]))
        for number, playing in enumerate(draws)
        if playing
    ]


def _too_small(splits: Sequence[PlayingSplit]) -> str:
    """Why nothing can be learned from the playing classes of a source; empty if something may be."""
    if not splits:
        return "the source has too few classes with two or more images to let any play the target"
    tags = sum(len(labels) for split in splits for labels in split.target[0].tags)
    if tags < _MIN_OBJECTS:
        return f"the images of playing classes have only {tags} tags ({_MIN_OBJECTS} are needed)"
    return ""


def _games(
    split: PlayingSplit, bags: BagStore, learned: Learned, localization: LocalizationSettings, device: str, memory: int
) -> list[Game]:
    """All playing images together, the clean ones alone and the cluttered ones alone, each as far as there are any."""
    kinds = {"all playing images": np.ones_like(split.cluttered)}
    if split.cluttered.any() and not split.cluttered.all():
        kinds |= {"clean ones alone": ~split.cluttered, "cluttered ones alone": split.cluttered}
    tags = split.target[0].tags
    parts = {name: np.flatnonzero(kind).tolist() for name, kind in kinds.items()}
    games = [
        Game.of(
            bags, split.target, learned, localization, indices=part, name=name, device=learning_device(device),
            memory=memory,
        )
        for name, part in parts.items()
        if any(tags[index] for index in part)
    ]  # fmt: skip
    return [game for game in games if any(map(len, game.overlap))]  # unreadable images have no bags


def _packaged(why: str, log: Callable[[str], None]) -> Combination:
    log(f"{why}, so evidence is weighed as in the packaged weights")
    combination = Combination.load(weights_folder(PACKAGED) / EVIDENCE)
    assert combination is not None
    return combination
