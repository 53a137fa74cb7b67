"""The engine: the only place that knows the recipe from bags to boxes.

`learn_source` learns from an annotated source what an object is and when two proposals show the same class;
`localize_target` finds a box for every tag of the target. The run, `Localizer`, tuning, studies and the calibration of
confidence call these two. Whatever trains a network is a stage around them.
"""

from collections.abc import Sequence
from pathlib import Path

from pairloc.bags.store import BagStore
from pairloc.bags.tensors import Bags
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.executors import Executor, Serial
from pairloc.localization.alternate import Log, silent
from pairloc.localization.learned import Learned
from pairloc.localization.methods import METHODS, Session, check_method
from pairloc.localization.result import Localization
from pairloc.localization.target import Target
from pairloc.localization.transfer import label_proposals, learn_transfer
from pairloc.refinement import Candidates, refine
from pairloc.settings import LocalizationSettings, MiSvmSettings, TransferSettings

MEMORY = 8 << 30  # bytes of features held at a time


def learn_source(
    bags: BagStore,
    truth: tuple[Dataset, GroundTruth],
    settings: TransferSettings,
    *,
    indices: Sequence[int] | None = None,
    device: str = "cpu",
    memory: int = MEMORY,
) -> Learned:
    """Learn the transfer scores from the bags of a source, or from those at `indices`, and its annotated boxes."""
    seen = Bags(bags, settings.features, indices=indices, device=device, memory=memory, seed=settings.seed)
    scores, curve = learn_transfer(seen, label_proposals(seen, *truth, settings), settings)
    return Learned(scores, curve=curve)


def localize_target(
    bags: BagStore,
    tags: Dataset,
    learned: Learned,
    settings: LocalizationSettings | MiSvmSettings,
    *,
    method: str = "full",
    indices: Sequence[int] | None = None,
    device: str = "cpu",
    memory: int = MEMORY,
    executor: Executor | None = None,
    checkpoint: Path | None = None,
    log: Log = silent,
) -> Localization:
    """Find a box for every tag: run a method, refine its boxes, say how far to trust each.

    `tags` has the images of the bags, or of those at `indices`, in the same order. With a folder as `checkpoint` the
    state is kept there after every round, and an interrupted call goes on from it.
    """
    check_method(method)
    learned = learned.to(device)
    target = Target.from_store(
        bags, tags, learned.scores, settings.features, indices=indices, device=device, memory=memory, seed=settings.seed
    )
    session = Session(target, learned, executor or Serial(), log, checkpoint)
    outcome = METHODS[method].recipe(session, settings)
    boxes = []
    for label, scores in enumerate(outcome.scores):
        selected = target.selected_boxes(outcome.state.selection, label)
        boxes.append(refine(selected, Candidates(target.boxes(label), scores), outcome.boxes))
    return Localization.of(tags, target, outcome, tuple(boxes))
