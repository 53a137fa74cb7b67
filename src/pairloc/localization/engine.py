"""The engine: the only implementation of the path from bags to boxes.

`learn_source` learns the transfer scores from an annotated source: what an object is, and when two proposals show the
same class. `localize_target` finds a box for every tag of the target. Runs, `Localizer`, tuning, studies and the
calibration of the confidence call these two functions. Stages that train a network are built around them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pairloc.bags.store import BagStore
from pairloc.bags.tensors import Bags
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.executors import Executor, Serial
from pairloc.inference.class_problem import ClassProblem
from pairloc.localization.alternate import Log, silent
from pairloc.localization.baselines.source_classifiers import fit_classifiers
from pairloc.localization.class_view import ClassView
from pairloc.localization.evidence import OWN_CLASS
from pairloc.localization.exclusion import refine_apart
from pairloc.localization.learned import Learned
from pairloc.localization.methods import METHODS, Session, check_method
from pairloc.localization.result import Localization
from pairloc.localization.sharing import Sharing, share_confidence
from pairloc.localization.target import Target
from pairloc.localization.transfer import label_proposals, learn_transfer
from pairloc.refinement import Candidates, refine
from pairloc.settings import FeatureSettings, LocalizationSettings, Settings, TransferSettings

MEMORY = 8 << 30  # default limit of the features kept in memory, in bytes


def learn_source(
    bags: BagStore,
    truth: tuple[Dataset, GroundTruth],
    settings: TransferSettings,
    *,
    indices: Sequence[int] | None = None,
    device: str = "cpu",
    memory: int = MEMORY,
) -> Learned:
    """Learn the transfer scores from the bags of a source and its annotated boxes.

    `indices` restricts training to those bags. Raises a NoObjectsError (an InputError) if fewer than two images have a
    proposal that overlaps an annotated object.
    """
    training_bags = Bags(bags, settings.features, indices=indices, device=device, memory=memory, seed=settings.seed)
    scores, curve = learn_transfer(training_bags, label_proposals(training_bags, *truth, settings), settings)
    return Learned(scores, curve=curve)


def learn_classifiers(
    bags: BagStore,
    truth: tuple[Dataset, GroundTruth],
    learned: Learned,
    *,
    indices: Sequence[int] | None = None,
    device: str = "cpu",
    memory: int = MEMORY,
) -> Learned:
    """Add classifiers of the source classes, which the baselines LSDA and Tang et al. transfer."""
    scores = learned.scores
    training_bags = Bags(
        bags, scores.settings.features, reduction=scores.reduction, indices=indices, device=device, memory=memory
    )
    labels = label_proposals(training_bags, *truth, scores.settings)
    return replace(learned, classifiers=fit_classifiers(training_bags, labels, truth[0].classes, scores.settings.seed))


def warm_up_problems(
    bags: BagStore,
    tags: Dataset,
    learned: Learned,
    settings: LocalizationSettings,
    *,
    indices: Sequence[int] | None = None,
    device: str = "cpu",
    memory: int = MEMORY,
) -> tuple[Target, list[ClassProblem | None]]:
    """Return the target and the problem that the warm-up solves for every class, None for a class without bags.

    Studies solve these problems in different ways. Parameters as in `localize_target`.
    """
    target = Target.from_store(
        bags, tags, learned.scores, settings.features, indices=indices, device=device, memory=memory, seed=settings.seed
    )
    return target, [
        ClassView(target, learned.scores, label, settings).problem(None) if len(positives) else None
        for label, positives in enumerate(target.positives)
    ]


def localize_target(
    bags: BagStore,
    tags: Dataset,
    learned: Learned,
    settings: Settings,
    *,
    method: str = "full",
    indices: Sequence[int] | None = None,
    device: str = "cpu",
    memory: int = MEMORY,
    executor: Executor | None = None,
    checkpoint: Path | None = None,
    log: Log = silent,
) -> Localization:
    """Find a box with a confidence for every tag: run a method with its settings, then refine its boxes.

    With learned evidence, two tags of an image that then share a box lose confidence: at most one of them is right.
    `tags` has the images of the bags, or of those at `indices`, in the same order. The state is written to the folder
    `checkpoint` after every round; an interrupted call resumes from it. Raises an InputError if the method does not
    exist, no image has a tag, or the checkpoint cannot be used.

    >>> learned = learn_source(source_bags, (source, truth), TransferSettings())
    >>> localization = localize_target(target_bags, tags, learned, LocalizationSettings())
    """
    check_method(method)
    learned = learned.to(device)
    features: FeatureSettings = getattr(settings, "features", learned.scores.settings.features)
    seed: int = getattr(settings, "seed", 0)
    combines = learned.combination is not None and isinstance(settings, LocalizationSettings)
    target = Target.from_store(
        bags, tags, learned.scores, features, known=learned.known if combines else None,
        tags_as_new=not _recognises_tags(learned, settings), indices=indices, device=device, memory=memory, seed=seed,
    )  # fmt: skip
    session = Session(target, learned, executor or Serial(), log, checkpoint)
    outcome = METHODS[method].recipe(session, settings)
    labels = range(len(target.classes))
    selected = tuple(target.selected_boxes(outcome.state.selection, label) for label in labels)
    candidates = (Candidates(target.boxes(label), outcome.scores[label]) for label in labels)
    boxes = tuple(refine(*entry, outcome.boxes) for entry in zip(selected, candidates, strict=True))
    sharing = Sharing()
    if outcome.is_explained:
        boxes = refine_apart(target.positives, selected, boxes, outcome.confidence)
        lowered, sharing = share_confidence(target.positives, boxes, outcome.confidence)
        outcome = replace(outcome, confidence=lowered)
    return Localization.of(tags, target, outcome, boxes, sharing)


def _recognises_tags(learned: Learned, settings: Settings) -> bool:
    """Whether a tag that is a known class has that class as evidence for it: if wanted, and if its weight was learned.

    Without that weight, taking the class from the known ones would only take away what speaks for the right box.
    """
    wanted = isinstance(settings, LocalizationSettings) and not settings.unary.tags_as_new
    return wanted and learned.combination is not None and learned.combination.weighs(OWN_CLASS)
