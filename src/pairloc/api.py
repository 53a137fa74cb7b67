"""The Python API: Localizer and evaluate, on the same engine as the command line."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pairloc.bags.features import check_class_features
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.tagging import Tags, tagged
from pairloc.detector.backbones import check_backbone, check_pretrained
from pairloc.detector.model import Proposer
from pairloc.errors import InputError, shown
from pairloc.evaluation.corloc import CorLoc, corloc, localized
from pairloc.evaluation.table import align
from pairloc.executors import executor
from pairloc.formats.reading import read_annotated
from pairloc.io import claim_folder, write_json
from pairloc.localization.calibration import calibrate
from pairloc.localization.engine import localize_target
from pairloc.localization.learned import Learned
from pairloc.localization.methods import METHODS, check_method
from pairloc.localization.result import Localization
from pairloc.platform import choose_device, learning_device
from pairloc.runs.evidence import never_taught, play_target, weigh_evidence
from pairloc.runs.learning import AGNOSTIC, Teacher
from pairloc.runs.registry import check_learning
from pairloc.runs.snapping import check_segmenter, load_segmenter, snap_boxes
from pairloc.settings import (
    EvidenceSettings,
    ExtractSettings,
    LocalizationSettings,
    ProposerSettings,
    SnapSettings,
    TransferSettings,
)
from pairloc.weights import EXTRACT, PACKAGED, SETTINGS, extract_of, localization_of, weights_folder
from pairloc.weights.catalogue import write_hashes


class Localizer:
    """Finds a box for every tag of an image, with scores learned from annotated images of other classes.

    Start with `Localizer.pretrained()`, `Localizer.load(folder)`, or `Localizer().fit(source)` on your own annotated
    images; then call `localize`.

    Parameters
    ----------
    proposer, extract, transfer, evidence, localization : settings of the steps, for `fit`; by default the recommended
        ones
    device : "auto", "cpu", "cuda" or "mps"; "auto" uses a GPU if there is one
    processes : number of processes that share the learning on a CPU; the result does not depend on it

    Raises
    ------
    InputError : a name in the settings, the device or the number of processes is not valid

    See Also
    --------
    pairloc.evaluate : measure the result where true boxes are known

    Examples
    --------
    >>> localizer = Localizer.pretrained()
    >>> found = localizer.localize(["images/a.jpg", "images/b.jpg"], [["key"], ["key", "bell"]])
    >>> len(found), len(found.boxes)
    (2, 3)
    """

    def __init__(
        self,
        *,
        proposer: ProposerSettings | None = None,
        extract: ExtractSettings | None = None,
        transfer: TransferSettings | None = None,
        evidence: EvidenceSettings | None = None,
        localization: LocalizationSettings | None = None,
        device: str = "auto",
        processes: int = 1,
    ) -> None:
        self.proposer = proposer or ProposerSettings()
        self.extract = extract or ExtractSettings(unreadable="skip")
        self.transfer = transfer or TransferSettings()
        self.evidence = evidence or EvidenceSettings()
        self.localization = localization or LocalizationSettings()
        self.device, self.processes = choose_device(device), processes
        if not isinstance(processes, int) or processes < 1:
            raise InputError(f"processes is {shown(processes)}; it must be at least 1")
        check_learning(self.transfer, self.localization)
        check_class_features(self.extract.class_features)
        check_backbone(self.proposer.backbone)
        self._proposer: Proposer | None = None
        self._box_proposer: Proposer | None = None  # gives the boxes if `extract.agnostic_boxes`
        self._learned: Learned | None = None

    def fit(
        self,
        source: str | Path | tuple[Dataset, GroundTruth],
        *,
        images: str | Path | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> "Localizer":
        """Learn from a source: what an object looks like, and when two boxes show the same kind of thing.

        Trains a detector, and another one without some of the classes to learn how much each piece of evidence counts,
        so it takes minutes to hours, depending on the number of images and on the device.

        Parameters
        ----------
        source : an annotation file or folder in any format that pairloc reads, or a data set with its ground truth
        images : folder of the images; by default it is searched next to the annotations
        log : called with lines about the playing classes, and why evidence is weighed as in the packaged weights if the
            source is too small; by default they are dropped

        Returns
        -------
        self : this Localizer, ready to localize

        Raises
        ------
        InputError : the source cannot be read, has too few annotated objects to learn from, the weights of the
            backbone would be a download that the settings do not allow, or `evidence.weights` were taught every class

        Examples
        --------
        >>> localizer = Localizer().fit("annotated/source.json", images="annotated/images")
        >>> localizer.save("weights")
        """
        check_pretrained(self.proposer)
        truth = source if isinstance(source, tuple) else read_annotated(source, images=images)
        weighs = self.localization.unary.combination == "learned"
        if weighs and self.evidence.weights is not None:
            never_taught(truth[0].classes, self.evidence.weights)  # before any work
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            teacher = self._teacher()
            self._proposer, self._box_proposer = teacher.train(truth, folder)
            bags = teacher.source_bags(truth, folder, folder / "bags")
            learned, curve = teacher.scores(truth, bags, folder), None
            if weighs:
                play_target(truth, self.evidence, teacher, folder / "playing", log)
                combination, curve = weigh_evidence(
                    truth, self.evidence, teacher, self.localization, [folder / "playing"], log
                )
                learned = replace(learned, combination=combination)
            if curve is None:
                curve = calibrate(
                    bags, truth, self.transfer, self.localization, combination=learned.combination,
                    device=learning_device(self.device),
                )  # fmt: skip
            self._learned = learned.calibrated(curve)
        return self

    def localize(
        self, images: Sequence[str | Path], tags: Tags, *, method: str = "full", snap: bool | str | Path = False
    ) -> Localization:
        """Find a box for every tag of every image.

        Parameters
        ----------
        images : paths of the images
        tags : a list beside `images` with a tag or a list of tags per image, or a mapping from paths to tags
        method : "full", or a step of it: "warm-up-unary", "warm-up", "unary"
        snap : True moves the boxes to the edges of the masks of an installed segmenter, a path those of its file of
            weights (docs/how-to/tight-boxes.md)

        Returns
        -------
        found : Localization; images that cannot be read are left out and named in `found.unreadable`

        Raises
        ------
        InputError : nothing was learned yet, the tags do not fit the images, no image has a tag, or the segmenter is
            not installed

        Examples
        --------
        >>> found = Localizer.pretrained().localize(["images/a.jpg", "images/b.jpg"], {"images/a.jpg": "key"})
        >>> [len(image.boxes) for image in found]
        [1, 0]
        """
        check_method(method)
        if METHODS[method].section is not METHODS["full"].section:
            raise InputError(f"{method!r} is a baseline with its own settings; use it with `pairloc run`")
        proposer, learned = self._fitted()
        snapping = SnapSettings(weights=None if isinstance(snap, bool) else Path(snap))
        if snap is not False:
            check_segmenter(snapping)
        dataset = tagged(images, tags)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            proposer.save(folder / "proposer")
            if self._box_proposer is not None:
                self._box_proposer.save(folder / AGNOSTIC)
            bags = self._teacher().bags(dataset, folder, folder / "bags")
            workers = executor(self.processes if self.device == "cpu" else 1)
            found = localize_target(
                bags, dataset, learned, self.localization, method=method,
                device=learning_device(self.device), executor=workers,
            )  # fmt: skip
            if snap is False:
                return found
            segmenter = load_segmenter(snapping, self.device)
            snapped = snap_boxes(dataset, found.boxes, segmenter, snapping, folder, device=self.device)
            return replace(found, boxes=snapped.boxes)

    def save(self, folder: str | Path) -> None:
        """Save the learned weights and the settings into a folder, for `load` and `pairloc localize --weights`.

        Parameters
        ----------
        folder : a new or empty folder, or one that an earlier `save` wrote

        Raises
        ------
        InputError : nothing was learned yet, or the folder contains other files
        """
        proposer, learned = self._fitted()
        claim_folder(Path(folder), SETTINGS)
        proposer.save(Path(folder) / "proposer")
        if self._box_proposer is not None:
            self._box_proposer.save(Path(folder) / AGNOSTIC)
        learned.save(Path(folder))
        write_json(Path(folder) / SETTINGS, self.localization.model_dump(mode="json"), indent=1)
        write_json(Path(folder) / EXTRACT, self.extract.model_dump(mode="json"), indent=1)
        write_hashes(Path(folder))

    @classmethod
    def pretrained(
        cls, *, localization: LocalizationSettings | None = None, device: str = "auto", processes: int = 1
    ) -> "Localizer":
        """Load the packaged weights, which were learned on 63 classes of COCO (see weights/coco63/CARD.md).

        Parameters
        ----------
        localization : settings to use instead of the recommended ones
        device : "auto", "cpu", "cuda" or "mps"
        processes : number of processes that share the learning on a CPU

        Returns
        -------
        localizer : Localizer, ready to localize

        Examples
        --------
        >>> localizer = Localizer.pretrained(device="cpu")
        """
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
        """Load weights and settings that `save` or a run wrote.

        Parameters
        ----------
        folder : folder that `save` or `pairloc run` wrote, or "coco63" for the packaged weights
        extract, localization : settings to use instead of those in the folder
        device : "auto", "cpu", "cuda" or "mps"
        processes : number of processes that share the learning on a CPU

        Returns
        -------
        localizer : Localizer, ready to localize

        Raises
        ------
        InputError : the folder contains no weights or is damaged

        Examples
        --------
        >>> localizer = Localizer.load("runs/mine", processes=2)
        """
        path = weights_folder(str(folder))
        proposer, learned = Proposer.load(path / "proposer"), Learned.load(path)
        localizer = cls(
            proposer=proposer.settings, extract=extract or extract_of(str(folder)), transfer=learned.scores.settings,
            localization=localization or localization_of(str(folder)), device=device, processes=processes,
        )  # fmt: skip
        localizer._proposer, localizer._learned = proposer, learned
        if localizer.extract.agnostic_boxes:
            localizer._box_proposer = Proposer.load(path / AGNOSTIC)
        return localizer

    def _teacher(self) -> Teacher:
        return Teacher(self.proposer, self.extract, self.transfer, self.device)

    def _fitted(self) -> tuple[Proposer, Learned]:
        if self._proposer is None or self._learned is None:
            raise InputError("this Localizer has learned nothing yet; call fit, or use Localizer.load or .pretrained")
        return self._proposer, self._learned


def evaluate(
    found: Localization,
    truth: str | Path | tuple[Dataset, GroundTruth],
    *,
    iou: float = 0.5,
    images: str | Path | None = None,
) -> CorLoc:
    """Measure CorLoc: for every class, the fraction of its images whose box has an IoU above `iou` with a true box.

    Parameters
    ----------
    found : the result of `Localizer.localize`
    truth : an annotation file with true boxes, or a data set with its ground truth; images are matched by path
    iou : threshold
    images : folder of the images of `truth`; by default it is searched next to the annotations

    Returns
    -------
    corloc : CorLoc, with the mean over classes, a 95% interval, and the value of every class

    Raises
    ------
    InputError : the boxes and the ground truth have no image in common

    Examples
    --------
    >>> tagged = read("tags.csv", images="images")
    >>> paths = [tagged.path(index) for index in range(len(tagged))]
    >>> found = Localizer.load("runs/mine").localize(paths, [tagged.names(index) for index in range(len(tagged))])
    >>> 0 <= evaluate(found, "truth.json").mean <= 1
    True
    """
    dataset, boxes = truth if isinstance(truth, tuple) else read_annotated(truth, images=images)
    return corloc(localized(dataset, align(_named_as(dataset, found.dataset), found.boxes, dataset), boxes), iou)


def _named_as(truth: Dataset, found: Dataset) -> Dataset:
    """Rename the images of a result to the file names of the ground truth, because their ids are not comparable."""
    files = {image.file for image in truth.images}
    names = {} if truth.folder is None else {(truth.folder / file).resolve(): file for file in files}
    images = []
    for index, image in enumerate(found.images):
        path = Path(image.file) if found.folder is None else found.path(index).resolve()
        suffixes = (path.relative_to(parent).as_posix() for parent in reversed(path.parents))  # the longest first
        file = names.get(path) or next((suffix for suffix in suffixes if suffix in files), image.file)
        images.append(replace(image, file=file))
    if not files & {image.file for image in images}:
        raise InputError("the boxes and the ground truth have no image in common; compare the file names")
    return replace(found, images=tuple(images))
