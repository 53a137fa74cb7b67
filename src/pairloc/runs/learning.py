"""Learning weights from annotated images: proposers, bags and transfer scores."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pairloc.bags.extract import extract
from pairloc.bags.store import BagStore
from pairloc.curation.splits import Annotated
from pairloc.datasets.dataset import Dataset
from pairloc.detector.model import Proposer
from pairloc.detector.training import for_transfer, train
from pairloc.localization.engine import MEMORY, learn_source
from pairloc.localization.known import KnownClasses
from pairloc.localization.learned import Learned
from pairloc.platform import learning_device
from pairloc.settings import ExtractSettings, ProposerSettings, TransferSettings

AGNOSTIC = "agnostic-proposer"  # the proposer of boxes where another one gives the features


def without_class(settings: ExtractSettings) -> ExtractSettings:
    """Return a copy of extraction settings without class features."""
    return settings.model_copy(update={"class_features": "none"})


@dataclass(frozen=True)
class Teacher:
    """The settings and the device with which weights are learned."""

    proposer: ProposerSettings
    extract: ExtractSettings
    transfer: TransferSettings
    device: str = "cpu"
    memory: int = MEMORY
    log: Callable[[str], None] = lambda line: None

    def train(self, truth: Annotated, folder: Path) -> tuple[Proposer, Proposer | None]:
        """Train the proposer in a folder, and the one that gives the boxes if there are two; a training resumes."""
        proposer = train(*truth, self.proposer, folder / "proposer", device=self.device, log=self.log)
        if not self.extract.agnostic_boxes:
            return proposer, None
        agnostic = self.proposer.model_copy(update={"class_agnostic": True})
        return proposer, train(*truth, agnostic, folder / AGNOSTIC, device=self.device, log=self.log)

    def bags(self, dataset: Dataset, proposers: Path, out: Path) -> BagStore:
        """Extract the bags of a data set into the folder `out`, with the proposers in another one."""
        features = proposers / "proposer"
        boxes = proposers / AGNOSTIC if self.extract.agnostic_boxes else features
        extract(dataset, boxes, out, self.extract, features_folder=features, device=self.device)
        return BagStore(out)

    def source_bags(self, truth: Annotated, proposers: Path, out: Path) -> BagStore:
        """Extract the bags of the source images that the transfer scores are learned from."""
        chosen = for_transfer(*truth, self.proposer, self.transfer.images)
        teacher = self if self.extract.source_class_features else replace(self, extract=without_class(self.extract))
        return teacher.bags(truth[0].subset(chosen), proposers, out)

    def scores(self, truth: Annotated, bags: BagStore, proposers: Path) -> Learned:
        """Learn the transfer scores from the bags of a source; the known classes are those of the proposer."""
        learned = learn_source(bags, truth, self.transfer, device=learning_device(self.device), memory=self.memory)
        return Learned(learned.scores, curve=learned.curve, known=KnownClasses.load(proposers / "proposer"))
