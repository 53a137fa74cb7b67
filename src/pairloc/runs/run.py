"""A run: its settings, its folder, and the data and results that its stages share."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pairloc.bags.features import check_class_features
from pairloc.bags.store import BagStore
from pairloc.curation.drawings import SOURCE, TARGET
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.backbones import check_pretrained
from pairloc.errors import InputError, abbreviated
from pairloc.evaluation.table import Evaluation
from pairloc.executors import Executor, executor
from pairloc.executors.cluster import connect
from pairloc.formats.reading import read, read_annotated
from pairloc.io import first_problem, read_json, read_model
from pairloc.localization.baselines.semantic import read_table
from pairloc.localization.confidence import Calibration
from pairloc.localization.learned import EVIDENCE, Learned
from pairloc.localization.methods import check_classifiers
from pairloc.migration import migrated_run
from pairloc.platform import learning_device
from pairloc.runs import runner
from pairloc.runs.evidence import never_taught
from pairloc.runs.registry import check_names, stages_of
from pairloc.runs.snapping import check_segmenter
from pairloc.runs.stage import Stage
from pairloc.settings import RunSettings
from pairloc.weights import weights_folder

Log = Callable[[str], None]


class Run:
    """A run in a folder. The constructor checks the settings and does no work.

    >>> run = Run(Path("runs/mine"), read_config(Path("mine.toml")))
    >>> evaluation = run.run()
    """

    def __init__(self, folder: Path, settings: RunSettings, device: str = "cpu", log: Log = print) -> None:
        check_names(settings)
        self.folder, self.settings, self.device, self.log = folder, settings, device, log
        self.weights: Path | None = None if settings.weights is None else weights_folder(settings.weights)
        self.stages: dict[str, Stage] = stages_of(settings, self.weights)

    def plan(self) -> list[tuple[str, str]]:
        """Return every stage with its state: done, resumable, pending, or changed."""
        return runner.plan(self)

    def run(self) -> Evaluation:
        """Run the unfinished stages and return the evaluation.

        Raises an InputError if an input is missing or the folder contains other files.
        """
        self._check_inputs()
        if self.weights is not None:
            for method in self.settings.methods:
                check_classifiers(method, self.learned)  # loading also reports unusable weights before any work
        self._check_semantic_table()
        self._check_evidence_weights()
        runner.work(self)
        skipped = self.target_bags.unreadable
        if skipped:
            again = "choose another output folder" if self.weights else f"remove {self.folder / 'bags'} and run again"
            self.log(f"{len(skipped)} images were left out: {abbreviated(skipped)}; after repairing them, {again}")
        return self.evaluation

    def _check_inputs(self) -> None:
        """Raise an InputError if an input or the cluster is missing, or an input and the output folder overlap."""
        if self.settings.cluster is not None:
            connect(self.settings.cluster)
        check_class_features(self.settings.extract.class_features, download=self.settings.extract.download)
        if self.weights is None:
            check_pretrained(self.settings.proposer)
        if "snapped" in self.settings.methods:
            check_segmenter(self.settings.snap)
        data, out = self.settings.data, self.folder.resolve()
        annotations = (data.source, data.target, data.truth)
        for file in (
            *annotations,
            self.settings.tang.semantic_table,
            data.source_images,
            data.target_images,
            self.weights,
        ):
            if file is not None and not file.exists():
                raise InputError(f"{file}: does not exist; check the path")
            if file is not None and file.resolve().is_relative_to(out):
                raise InputError(f"{file}: is inside the output folder {self.folder}; choose another output folder")
        for file in annotations:
            if file is not None and file.is_dir() and out.is_relative_to(file.resolve()):
                raise InputError(f"{self.folder}: is inside the data set {file}; choose another output folder")

    def _check_semantic_table(self) -> None:
        """Raise an InputError if the similarities given for `tang` do not fit the classes of source and target."""
        table = self.settings.tang.semantic_table
        if table is None or "tang" not in self.settings.methods:
            return
        if self.settings.data.scenes is not None:
            targets, sources = tuple(TARGET), tuple(SOURCE)  # the scenes may not be drawn yet
        else:
            targets = self.target.classes
            classifiers = None if self.weights is None else self.learned.classifiers
            sources = self.source[0].classes if classifiers is None else classifiers.classes
        read_table(table, targets, sources)

    def _check_evidence_weights(self) -> None:
        """Raise an InputError if no class of the source was kept from the weights that evidence is learned with."""
        weights = self.settings.evidence.weights
        if weights is None or EVIDENCE not in self.stages:
            return
        if weights_folder(str(weights)).resolve().is_relative_to(self.folder.resolve()):
            raise InputError(f"{weights}: is inside the output folder {self.folder}; choose another output folder")
        never_taught(tuple(SOURCE) if self.settings.data.scenes is not None else self.source[0].classes, weights)

    @property
    def evaluation(self) -> Evaluation:
        """The result of the stage `evaluation`."""
        return read_model(self.folder / "evaluation" / "evaluation.json", Evaluation)

    @property
    def memory(self) -> int:
        """Maximum size of the features kept in memory, in bytes."""
        return int(self.settings.memory * 1e9)

    @property
    def learning_device(self) -> str:
        """The device that selects boxes and re-trains: the workers of a cluster do that on their CPUs."""
        return "cpu" if self.settings.cluster is not None else learning_device(self.device)

    @cached_property
    def executor(self) -> Executor:
        """The executor of independent tasks: a cluster, a pool of processes on a CPU, or this process on a GPU."""
        return executor(self.settings.processes if self.device == "cpu" else 1, self.settings.cluster)

    @cached_property
    def source(self) -> tuple[Dataset, GroundTruth]:
        """The annotated source."""
        data = self.settings.data
        if data.scenes is not None:
            return read_annotated(self.folder / "data" / "scenes" / "source.json")
        assert data.source is not None
        return read_annotated(data.source, data.source_format, data.source_images)

    @cached_property
    def target(self) -> Dataset:
        """The tagged target."""
        data = self.settings.data
        if data.scenes is not None:
            return read(self.folder / "data" / "scenes" / "target_tags.csv")
        assert data.target is not None
        return read(data.target, data.target_format, data.target_images)

    @cached_property
    def truth(self) -> tuple[Dataset, GroundTruth] | None:
        """The target and its ground truth, with indices of the target's images and classes; None if unknown."""
        file = self.settings.data.truth
        if self.settings.data.scenes is not None:
            file = self.folder / "data" / "scenes" / "target_truth.json"
        return None if file is None else (self.target, _align(self.target, *read_annotated(file)))

    @property
    def model_folder(self) -> Path:
        """The folder with proposer, transfer scores and calibration: the weights, or this run."""
        return self.weights or self.folder

    @cached_property
    def learned(self) -> Learned:
        """Transfer scores, combination of evidence and calibration, learned on the source."""
        learned = Learned.load(self.model_folder)
        if self.weights is None:  # the folder may hold results of stages that earlier settings had
            calibration = learned.calibration if "calibration" in self.stages else Calibration()
            combination = learned.combination if EVIDENCE in self.stages else None
            learned = replace(learned, calibration=calibration, combination=combination)
        return learned.to(self.learning_device)

    @cached_property
    def source_bags(self) -> BagStore:
        """The bags of the source."""
        return BagStore(self.folder / "bags" / "source")

    @cached_property
    def target_bags(self) -> BagStore:
        """The bags of the target."""
        return BagStore(self.folder / "bags" / "target")

    @property
    def result_method(self) -> str:
        """The method whose boxes are the result of the run: snapped, fine-tuned, full, or else the last method."""
        best = (name for name in ("snapped", "fine-tuned", "full") if name in self.settings.methods)
        return next(best, self.settings.methods[-1])

    def sample(self, images: int | None) -> tuple[list[int], Dataset, GroundTruth]:
        """Draw `images` target images at random, or take all; return their indices, tags and ground truth.

        Raises an InputError if the run has no ground truth.
        """
        if self.truth is None:
            raise InputError(f"{self.folder}: has no ground truth to measure CorLoc with; set data.truth")
        count = len(self.target)
        if images is None or images >= count:
            return list(range(count)), *self.truth
        drawn = np.sort(np.random.default_rng(self.settings.seed).permutation(count)[:images])
        new_index = np.full(count, -1)
        new_index[drawn] = np.arange(images)
        dataset = self.target.subset(drawn.tolist())
        return drawn.tolist(), dataset, self.truth[1].relabelled(new_index, np.arange(len(dataset.classes)))


def open_run(folder: Path, device: str = "cpu", log: Log = print) -> Run:
    """Open an existing run of this or an earlier version; raises an InputError if the folder is not a run."""
    return Run(folder, saved_settings(folder), device, log)


def saved_settings(folder: Path) -> RunSettings:
    """Read the settings of a run; raises an InputError if the folder is not a run or its settings are invalid."""
    if not folder.is_dir():
        raise InputError(f"{folder}: is not the folder of a run; give one that pairloc run wrote")
    content: Any = read_json(folder / runner.CONFIG)
    settings = content.get("settings", content) if isinstance(content, dict) else content
    if not isinstance(settings, dict):
        raise InputError(f"{folder / runner.CONFIG}: does not contain the settings of a run")
    try:
        return RunSettings.model_validate(migrated_run(settings))
    except ValidationError as error:
        raise InputError(f"{folder / runner.CONFIG}: {first_problem(error)}") from error


def _align(dataset: Dataset, annotated: Dataset, truth: GroundTruth) -> GroundTruth:
    """Convert ground truth to the image and class indices of `dataset`."""
    image = np.array([-1 if index is None else index for index in dataset.indices_of(annotated)], dtype=np.int64)
    names = {name: index for index, name in enumerate(dataset.classes)}
    label = np.array([names.get(name, -1) for name in annotated.classes], dtype=np.int64)
    return truth.relabelled(image, label)
