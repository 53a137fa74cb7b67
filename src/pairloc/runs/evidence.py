"""Learning how much evidence counts on a source of one's own: some of its classes play the target.

A second proposer is trained without the playing classes, since one that was taught them would recognise them. What is
learned with it (`localization/playing.py`) holds for the proposer that was taught all classes and meets new ones.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pairloc.bags.store import BagStore
from pairloc.curation.splits import Annotated, PlayingSplit, split_playing
from pairloc.datasets.dataset import Dataset
from pairloc.errors import InputError
from pairloc.localization.combination import Combination
from pairloc.localization.confidence import Calibration
from pairloc.localization.known import KnownClasses
from pairloc.localization.learned import EVIDENCE, Learned
from pairloc.localization.playing import Game, learn_evidence
from pairloc.localization.transfer import NoObjectsError
from pairloc.platform import learning_device
from pairloc.runs.learning import Teacher
from pairloc.settings import EvidenceSettings, LocalizationSettings
from pairloc.weights import PACKAGED, weights_folder

_FEW_CLASSES = 6  # with fewer, every class plays alone
_MIN_OBJECTS = 100  # playing objects that proposals have to cover


def evidence_of_source(
    truth: Annotated,
    settings: EvidenceSettings,
    teacher: Teacher,
    localization: LocalizationSettings,
    folder: Path,
    log: Callable[[str], None],
) -> tuple[Combination, Calibration | None]:
    """Learn from an annotated source how much each evidence term counts, and the confidence.

    Proposers and bags of the playing classes are left in `folder`. A source that is too small for this takes the
    combination of the packaged weights, and None for the confidence. Raises an InputError if the `weights` in the
    settings were taught every class of the source.
    """
    try:
        games = _games(truth, settings, teacher, localization, folder, log)
    except NoObjectsError:
        return _packaged("without the playing classes, too few objects are left to learn from", log), None
    covered = sum(int((overlap > 0.5).any(dim=1).sum()) for game in games for overlap in game.overlap)
    if covered < _MIN_OBJECTS:
        return _packaged(f"only {covered} objects of playing classes can be learned from", log), None
    return learn_evidence(games, localization, log=log)


def draw_playing(dataset: Dataset, settings: EvidenceSettings) -> list[list[int]]:
    """Draw the classes that play the target together: a third of the classes, or one after the other if few."""
    usable = [label for label, images in enumerate(dataset.positives) if len(images) > 1]
    if len(usable) < 2:
        return []
    if len(usable) < _FEW_CLASSES:
        return [[label] for label in usable]
    draws, order = [], list[int]()
    count = min(settings.classes, len(usable) // 3)
    generator = np.random.default_rng(settings.seed)
    for _ in range(settings.draws):
        if len(order) < count:  # every class plays once before one plays twice
            order = generator.permutation(usable).tolist()
        draws.append(sorted(order[:count]))
        order = order[count:]
    return draws


def _games(
    truth: Annotated,
    settings: EvidenceSettings,
    teacher: Teacher,
    localization: LocalizationSettings,
    folder: Path,
    log: Callable[[str], None],
) -> list[Game]:
    dataset, games = truth[0], list[Game]()
    taught = None if settings.weights is None else weights_folder(str(settings.weights))
    draws = draw_playing(dataset, settings) if taught is None else [_never_taught(dataset, taught)]
    for number, playing in enumerate(draws):
        names = ", ".join(dataset.classes[label] for label in playing)
        log(f"playing classes, draw {number + 1} of {len(draws)}: {names}")
        generator = np.random.default_rng([settings.seed, number])
        split, part = split_playing(truth, playing, settings.images, generator), folder / f"draw-{number + 1}"
        if not any(split.target[0].tags) or not len(split.source[1]):
            continue
        if taught is None:
            teacher.train(split.source, part)
            learned = teacher.scores(split.source, teacher.source_bags(split.source, part, part / "source"), part)
        else:
            learned = Learned.load(taught)
        store = teacher.bags(split.target[0], taught or part, part / "playing")
        games += _contexts(split, store, learned, teacher, localization)
    return games


def _contexts(
    split: PlayingSplit, bags: BagStore, learned: Learned, teacher: Teacher, localization: LocalizationSettings
) -> list[Game]:
    """All playing images together, the clean ones alone and the cluttered ones alone, each as far as there are any."""
    kinds = [np.ones_like(split.cluttered)]
    if split.cluttered.any() and not split.cluttered.all():
        kinds += [~split.cluttered, split.cluttered]
    device, tags = learning_device(teacher.device), split.target[0].tags
    return [
        Game.of(bags, split.target, learned, localization, indices=part, device=device, memory=teacher.memory)
        for part in (np.flatnonzero(kind).tolist() for kind in kinds)
        if any(tags[index] for index in part)
    ]


def _never_taught(dataset: Dataset, folder: Path) -> list[int]:
    """The classes of a source that the proposer of some weights was not taught."""
    known = KnownClasses.load(folder / "proposer")
    playing = [label for label, name in enumerate(dataset.classes) if known is not None and name not in known.names]
    if not playing:
        raise InputError(f"{folder}: was taught every class of the source, so none can play; remove evidence.weights")
    return playing


def _packaged(why: str, log: Callable[[str], None]) -> Combination:
    log(f"{why}, so evidence is weighed as in the packaged weights")
    combination = Combination.load(weights_folder(PACKAGED) / EVIDENCE)
    assert combination is not None
    return combination
