"""Localizer: the few lines a notebook needs."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pairloc.bags.extract import extract
from pairloc.bags.store import BagStore
from pairloc.bags.tensors import Bags
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.detector.model import Proposer
from pairloc.detector.training import for_transfer, train
from pairloc.errors import InputError
from pairloc.formats.reading import read_annotated
from pairloc.localization.alternate import State
from pairloc.localization.functions import TransferScores
from pairloc.localization.methods import run_method, settings_of
from pairloc.localization.refining import refined
from pairloc.localization.target import Target, scored_boxes
from pairloc.localization.transfer import label_proposals, learn_transfer
from pairloc.runs.localize import learning_of
from pairloc.settings import ExtractSettings, LearningSettings, ProposerSettings, TransferSettings
from pairloc.weights import PACKAGED, weights_folder

_MOST = 5000  # source images the transfer scores learn from
Tags = Sequence[str | Sequence[str]] | Mapping[str, str | Sequence[str]]


class Localizer:
    """Learns from an annotated source, then finds the boxes of tags in other pictures.

    >>> localizer = Localizer().fit("source.json", images="photos")
    >>> boxes = localizer.localize(["a.jpg", "b.jpg"], [["cat"], ["cat", "dog"]])

    After `localize`, `dataset_` holds its images and classes, `state_` the scores, the history, and `converged`.
    """

    def __init__(
        self,
        *,
        proposer: ProposerSettings | None = None,
        extract: ExtractSettings | None = None,
        transfer: TransferSettings | None = None,
        learning: LearningSettings | None = None,
        device: str = "auto",
    ) -> None:
        self.proposer = proposer or ProposerSettings()
        self.extract = extract or ExtractSettings()
        self.transfer = transfer or TransferSettings()
        self.learning = learning or LearningSettings()
        self.device = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        self._proposer: Proposer | None = None
        self._scores: TransferScores | None = None
        self.dataset_: Dataset | None = None
        self.state_: State | None = None

    def fit(self, source: str | Path | tuple[Dataset, GroundTruth], *, images: str | Path | None = None) -> "Localizer":
        """Learn what an object is and when two boxes show the same kind of thing, from annotations or their file."""
        dataset, truth = source if isinstance(source, tuple) else read_annotated(Path(source), images=_path(images))
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            self._proposer = train(dataset, truth, self.proposer, work / "proposer", device=self.device)
            extract(
                dataset.subset(for_transfer(dataset, truth, self.proposer, _MOST)),
                work / "proposer",
                work / "bags",
                self.extract,
                device=self.device,
            )
            bags = Bags(
                BagStore(work / "bags"), self.transfer.features, dimensions=self.transfer.dimensions,
                geometry=self.transfer.geometry, device=self.device,
            )  # fmt: skip
            labels = label_proposals(bags, dataset, truth, self.transfer)
            self._scores, _ = learn_transfer(bags, labels, self.transfer)
        return self

    def localize(self, images: Sequence[str | Path], tags: Tags, *, method: str = "full") -> ScoredBoxes:
        """A box for every tag of every picture; the result's `image` and `label` index `dataset_`."""
        if self._proposer is None or self._scores is None:
            raise InputError("this Localizer has learned nothing yet; call fit or load first")
        self.dataset_ = dataset = _tagged(images, tags)
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            self._proposer.save(work / "proposer")
            extract(dataset, work / "proposer", work / "bags", self.extract, device=self.device)
            scores = self._scores.to(self.device)
            target = Target.from_store(BagStore(work / "bags"), scores, self.learning, device=self.device)
            self.state_ = run_method(method, target, scores, self.learning)
            return scored_boxes(target, refined(target, scores, self.state_, settings_of(method, self.learning)))

    def save(self, folder: str | Path) -> None:
        """Write what `fit` learned."""
        if self._proposer is None or self._scores is None:
            raise InputError("this Localizer has learned nothing yet; call fit first")
        self._proposer.save(Path(folder) / "proposer")
        self._scores.save(Path(folder) / "transfer")

    @classmethod
    def pretrained(cls, *, learning: LearningSettings | None = None, device: str = "auto") -> "Localizer":
        """With the weights of the package: learned on COCO photographs of 63 classes (see their CARD.md)."""
        return cls.load(weights_folder(PACKAGED), learning=learning, device=device)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        extract: ExtractSettings | None = None,
        learning: LearningSettings | None = None,
        device: str = "auto",
    ) -> "Localizer":
        """Read what `save` wrote."""
        if learning is None and (Path(folder) / "learning.json").is_file():
            learning = learning_of(str(folder))
        proposer = Proposer.load(Path(folder) / "proposer")
        scores = TransferScores.load(Path(folder) / "transfer")
        found = cls(
            proposer=proposer.settings, extract=extract, transfer=scores.settings, learning=learning, device=device
        )
        found._proposer, found._scores = proposer, scores
        return found


def _tagged(images: Sequence[str | Path], tags: Tags) -> Dataset:
    """Pictures and their tags as a data set; tags are a list beside the pictures, or a table by path."""
    paths = [Path(image) for image in images]
    entries = [tags.get(str(image), ()) for image in images] if isinstance(tags, Mapping) else list(tags)
    if len(entries) != len(paths):
        raise InputError(f"{len(paths)} pictures but {len(entries)} entries of tags")
    lists = [[entry] if isinstance(entry, str) else list(entry) for entry in entries]
    classes = tuple(sorted({name for entry in lists for name in entry}))
    if not classes:
        raise InputError("no picture has a tag")
    place = {name: index for index, name in enumerate(classes)}
    folder = Path("/")
    files = [path.resolve().relative_to(folder).as_posix() for path in paths]
    return Dataset(
        tuple(Image(index + 1, file, None) for index, file in enumerate(files)),
        classes,
        tuple(tuple(sorted({place[name] for name in entry})) for entry in lists),
        folder=folder,
    )


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)
