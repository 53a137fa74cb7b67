"""Localizer: the few lines a notebook needs, on the same engine as the command line."""

import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pairloc.bags.extract import extract
from pairloc.bags.features import check_class_features
from pairloc.bags.store import BagStore
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.backbones import check_backbone
from pairloc.detector.model import Proposer
from pairloc.detector.training import for_transfer, train
from pairloc.errors import InputError, shown
from pairloc.evaluation.corloc import CorLoc, corloc, localized
from pairloc.evaluation.table import align
from pairloc.executors import executor
from pairloc.formats.reading import read_annotated
from pairloc.io import claim_folder, write_json
from pairloc.localization.calibration import calibrate
from pairloc.localization.engine import learn_source, localize_target
from pairloc.localization.learned import Learned
from pairloc.localization.methods import METHODS, check_method
from pairloc.localization.result import Localization
from pairloc.platform import choose_device, learning_device
from pairloc.runs.registry import check_learning
from pairloc.settings import ExtractSettings, LocalizationSettings, ProposerSettings, TransferSettings
from pairloc.weights import EXTRACT, PACKAGED, SETTINGS, extract_of, localization_of, weights_folder

Own = str | Sequence[str]  # the tags of an image
Tags = Sequence[Own] | Mapping[str, Own] | Mapping[Path, Own] | Mapping[str | Path, Own]


class Localizer:
    """Finds the boxes of tags in images, with what it learned from annotated images of other classes.

    Parameters
    ----------
    proposer, extract, transfer, localization : settings, where they are not the recommended ones
    device : "auto", "cpu", "cuda" or "mps"
    processes : processes that share the work on a CPU

    Examples
    --------
    >>> localizer = Localizer.pretrained()
    >>> found = localizer.localize(["a.jpg", "b.jpg"], [["cat"], ["cat", "dog"]])
    >>> found.to_coco()

    With a source of your own:

    >>> localizer = Localizer().fit("source.json", images="photos")
    """

    def __init__(
        self,
        *,
        proposer: ProposerSettings | None = None,
        extract: ExtractSettings | None = None,
        transfer: TransferSettings | None = None,
        localization: LocalizationSettings | None = None,
        device: str = "auto",
        processes: int = 1,
    ) -> None:
        self.proposer = proposer or ProposerSettings()
        self.extract = extract or ExtractSettings(unreadable="skip")
        self.transfer = transfer or TransferSettings()
        self.localization = localization or LocalizationSettings()
        self.device, self.processes = choose_device(device), processes
        if not isinstance(processes, int) or processes < 1:
            raise InputError(f"processes is {shown(processes)}; it is at least 1")
        check_learning(self.transfer, self.localization)
        check_class_features(self.extract.class_features)
        check_backbone(self.proposer.backbone)
        self._proposer: Proposer | None = None
        self._learned: Learned | None = None

    def fit(self, source: str | Path | tuple[Dataset, GroundTruth], *, images: str | Path | None = None) -> "Localizer":
        """Learn what an object is and when two boxes show the same kind of thing, from annotations or their file."""
        truth = source if isinstance(source, tuple) else read_annotated(source, images=images)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self._proposer = train(*truth, self.proposer, folder / "proposer", device=self.device)
            chosen = truth[0].subset(for_transfer(*truth, self.proposer, self.transfer.images))
            extract(chosen, folder / "proposer", folder / "bags", self.extract, device=self.device)
            bags = BagStore(folder / "bags")
            learned = learn_source(bags, truth, self.transfer, device=learning_device(self.device))
            curve = calibrate(bags, truth, self.transfer, self.localization, device=learning_device(self.device))
            self._learned = learned.calibrated(curve)
        return self

    def localize(self, images: Sequence[str | Path], tags: Tags, *, method: str = "full") -> Localization:
        """Find a box for every tag of every image.

        `tags` is a list beside the images, a tag or several for each, or a table from paths to tags. An image that
        cannot be read is left out and named in the result's `unreadable`.
        """
        check_method(method)
        if METHODS[method].section is not METHODS["full"].section:
            raise InputError(f"{method!r} is a baseline with settings of its own; it needs a run")
        proposer, learned = self._fitted()
        dataset = tagged(images, tags)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            proposer.save(folder / "proposer")
            extract(dataset, folder / "proposer", folder / "bags", self.extract, device=self.device)
            workers = executor(self.processes if self.device == "cpu" else 1)
            return localize_target(
                BagStore(folder / "bags"), dataset, learned, self.localization, method=method,
                device=learning_device(self.device), executor=workers,
            )  # fmt: skip

    def save(self, folder: str | Path) -> None:
        """Write what `fit` learned, with the settings to localize with: a folder that `load` and --weights take."""
        proposer, learned = self._fitted()
        claim_folder(Path(folder), SETTINGS)
        proposer.save(Path(folder) / "proposer")
        learned.save(Path(folder))
        write_json(Path(folder) / SETTINGS, self.localization.model_dump(mode="json"), indent=1)
        write_json(Path(folder) / EXTRACT, self.extract.model_dump(mode="json"), indent=1)

    @classmethod
    def pretrained(
        cls, *, localization: LocalizationSettings | None = None, device: str = "auto", processes: int = 1
    ) -> "Localizer":
        """The weights of the package: learned on COCO images of 63 classes (see their CARD.md)."""
        return cls.load(PACKAGED, localization=localization, device=device, processes=processes)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        extract: ExtractSettings | None = None,
        localization: LocalizationSettings | None = None,
        device: str = "auto",
        processes: int = 1,
    ) -> "Localizer":
        """Read what `save` wrote, or take the weights and the settings of a run."""
        where = weights_folder(str(folder))
        proposer, learned = Proposer.load(where / "proposer"), Learned.load(where)
        found = cls(
            proposer=proposer.settings, extract=extract or extract_of(str(folder)), transfer=learned.scores.settings,
            localization=localization or localization_of(str(folder)), device=device, processes=processes,
        )  # fmt: skip
        found._proposer, found._learned = proposer, learned
        return found

    def _fitted(self) -> tuple[Proposer, Learned]:
        if self._proposer is None or self._learned is None:
            raise InputError("this Localizer has learned nothing yet; call fit or load first")
        return self._proposer, self._learned


def evaluate(
    found: Localization,
    truth: str | Path | tuple[Dataset, GroundTruth],
    *,
    iou: float = 0.5,
    images: str | Path | None = None,
) -> CorLoc:
    """CorLoc of a result: of each class's images, the part whose box has an IoU above `iou` with a true one."""
    dataset, boxes = truth if isinstance(truth, tuple) else read_annotated(truth, images=images)
    return corloc(localized(dataset, align(_named_as(dataset, found.dataset), found.boxes, dataset), boxes), iou)


def _named_as(truth: Dataset, found: Dataset) -> Dataset:
    """The images that boxes were found in under the truth's names of them; their ids are only numbers in a list."""
    files = {image.file for image in truth.images}
    names = {} if truth.folder is None else {(truth.folder / file).resolve(): file for file in files}
    images = []
    for index, image in enumerate(found.images):
        path = Path(image.file) if found.folder is None else found.path(index).resolve()
        ends = (path.relative_to(parent).as_posix() for parent in reversed(path.parents))  # the longest first
        images.append(replace(image, file=names.get(path) or next((end for end in ends if end in files), image.file)))
    if not files & {image.file for image in images}:
        raise InputError("the boxes and the truth have no image in common")
    return replace(found, images=tuple(images))


def tagged(images: Sequence[str | Path], tags: Tags) -> Dataset:
    """Images and their tags as a data set."""
    if isinstance(images, str | Path):
        raise InputError("images is one path; give a list of paths")
    if not isinstance(images, Sequence):
        raise InputError(f"images is {shown(images)}; give a list of paths")
    paths = [_path(image, "images") for image in images]
    lists = [_names(entry, path) for entry, path in zip(_entries(paths, tags), paths, strict=True)]
    classes = tuple(dict.fromkeys(name for entry in lists for name in entry))  # as they come, as in a file of tags
    if not classes:
        raise InputError("no image has a tag")
    place = {name: index for index, name in enumerate(classes)}
    whole = [path.resolve() for path in paths]
    twice = next((path for path, count in Counter(whole).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"{twice}: is given twice; name an image once, with all of its tags")
    root = Path(os.path.commonpath([path.parent for path in whole]))
    files = [path.relative_to(root).as_posix() for path in whole]
    return Dataset(
        tuple(Image(index + 1, file, None) for index, file in enumerate(files)),
        classes,
        tuple(tuple(sorted({place[name] for name in entry})) for entry in lists),
        folder=root,
    )


def _entries(paths: list[Path], tags: Tags) -> list[object]:
    """What was said of every image."""
    if isinstance(tags, str):
        raise InputError(f"tags is one text, {shown(tags)}; give a list with the tags of every image")
    if isinstance(tags, Mapping):
        by_path = {_path(key, "tags"): value for key, value in tags.items()}
        if not set(by_path) & set(paths):
            raise InputError("no image is among the paths that tags names")
        return [by_path.get(path, ()) for path in paths]
    if not isinstance(tags, Sequence):
        raise InputError(f"tags is {shown(tags)}; give a list with the tags of every image, or a table by path")
    if len(tags) != len(paths):
        raise InputError(f"{len(paths)} images but {len(tags)} entries of tags")
    return list(tags)


def _path(value: object, where: str) -> Path:
    if not isinstance(value, str | Path):
        raise InputError(f"{where} names {shown(value)}, which is not a path")
    return Path(value)


def _names(entry: object, path: Path) -> list[str]:
    names: list[Any] | None = None
    if isinstance(entry, str):
        names = [entry]
    elif isinstance(entry, Sequence | set | frozenset):
        names = list(entry) if isinstance(entry, Sequence) else sorted(entry, key=str)  # a set has no order
    if names is None or not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f"{path}: its tags are {shown(entry)}; give a tag or a list of tags")
    return [name.strip() for name in names]
