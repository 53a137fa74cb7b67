"""A run: settings, a folder, and what its stages work on."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pairloc.bags.store import BagStore
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.evaluation.table import Evaluation
from pairloc.executors import Executor, executor
from pairloc.formats.reading import read, read_annotated
from pairloc.io import first_problem, read_json, read_model
from pairloc.localization.learned import Learned
from pairloc.migration import migrated_run
from pairloc.platform import learning_device
from pairloc.runs import runner
from pairloc.runs.registry import check_names, stages_of
from pairloc.runs.stage import Stage
from pairloc.settings import RunSettings
from pairloc.weights import weights_folder

Log = Callable[[str], None]


class Run:
    """A run in a folder. Making one checks its settings and does no work.

    >>> run = Run(Path("runs/mine"), read_config(Path("mine.toml")))
    >>> evaluation = run.run()
    """

    def __init__(self, folder: Path, settings: RunSettings, device: str = "cpu", log: Log = print) -> None:
        check_names(settings)
        self.folder, self.settings, self.device, self.log = folder, settings, device, log
        self.weights: Path | None = None if settings.weights is None else weights_folder(settings.weights)
        self.stages: dict[str, Stage] = stages_of(settings, self.weights)

    def plan(self) -> list[tuple[str, str]]:
        """Every stage and its state."""
        return runner.plan(self)

    def run(self) -> Evaluation:
        """Run the unfinished stages and return the evaluation."""
        self._check_inputs()
        if self.weights is not None:
            _ = self.learned  # weights that cannot be used are noticed before any work
        runner.work(self)
        return self.evaluation

    def _check_inputs(self) -> None:
        """What the run reads must be there, and neither it nor the output folder may lie inside the other."""
        data, out = self.settings.data, self.folder.resolve()
        annotations = (data.source, data.target, data.truth)
        for file in (*annotations, data.source_images, data.target_images, self.weights):
            if file is not None and not file.exists():
                raise InputError(f"{file}: there is no such file or folder")
            if file is not None and file.resolve().is_relative_to(out):
                raise InputError(f"{file}: lies inside the output folder {self.folder}; name another output folder")
        for file in annotations:
            if file is not None and file.is_dir() and out.is_relative_to(file.resolve()):
                raise InputError(f"{self.folder}: lies inside the data set {file}; name another output folder")

    @property
    def evaluation(self) -> Evaluation:
        """What the stage `evaluation` found."""
        return read_model(self.folder / "evaluation" / "evaluation.json", Evaluation)

    @property
    def memory(self) -> int:
        """Bytes of features held at a time."""
        return int(self.settings.memory * 1e9)

    @cached_property
    def executor(self) -> Executor:
        """What runs independent tasks: a pool of processes on a CPU, this process with a GPU."""
        return executor(self.settings.processes if self.device == "cpu" else 1)

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
        """The target's boxes, where they are known, under the images and classes of the target."""
        file = self.settings.data.truth
        if self.settings.data.scenes is not None:
            file = self.folder / "data" / "scenes" / "target_truth.json"
        return None if file is None else (self.target, _under(self.target, *read_annotated(file)))

    @property
    def learned_in(self) -> Path:
        """The folder that holds proposer, transfer scores and calibration: the weights, or this run."""
        return self.weights or self.folder

    @cached_property
    def learned(self) -> Learned:
        """What the source taught."""
        return Learned.load(self.learned_in).to(learning_device(self.device))

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
        """The method whose boxes are the run's: the last step of the paper's method where it is among them."""
        return next(
            (name for name in ("fine-tuned", "full") if name in self.settings.methods), self.settings.methods[-1]
        )

    def sample(self, images: int | None) -> tuple[list[int], Dataset, GroundTruth]:
        """All images of the target, or so many drawn at random: their indices, tags and truth."""
        if self.truth is None:
            raise InputError(f"{self.folder}: has no truth to measure CorLoc with")
        count = len(self.target)
        if images is None or images >= count:
            return list(range(count)), *self.truth
        drawn = np.sort(np.random.default_rng(self.settings.seed).permutation(count)[:images])
        place = np.full(count, -1)
        place[drawn] = np.arange(images)
        dataset = self.target.subset(drawn.tolist())
        return drawn.tolist(), dataset, self.truth[1].relabelled(place, np.arange(len(dataset.classes)))


def open_run(folder: Path, device: str = "cpu", log: Log = print) -> Run:
    """A run that was made before, by this version or by one that called its settings otherwise."""
    return Run(folder, saved_settings(folder), device, log)


def saved_settings(folder: Path) -> RunSettings:
    """The settings that a run was made with."""
    if not folder.is_dir():
        raise InputError(f"{folder}: is not the folder of a run")
    content: Any = read_json(folder / runner.CONFIG)
    settings = content.get("settings", content) if isinstance(content, dict) else content
    if not isinstance(settings, dict):
        raise InputError(f"{folder / runner.CONFIG}: does not hold the settings of a run")
    try:
        return RunSettings.model_validate(migrated_run(settings))
    except ValidationError as error:
        raise InputError(f"{folder / runner.CONFIG}: {first_problem(error)}") from error


def _under(dataset: Dataset, annotated: Dataset, truth: GroundTruth) -> GroundTruth:
    """The truth under the indices of the target's data set."""
    image = np.array([-1 if place is None else place for place in dataset.places(annotated)], dtype=np.int64)
    names = {name: index for index, name in enumerate(dataset.classes)}
    label = np.array([names.get(name, -1) for name in annotated.classes], dtype=np.int64)
    return truth.relabelled(image, label)
