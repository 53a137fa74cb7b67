"""A run: from the data through proposer, bags and transfer scores to every method's boxes and their evaluation.

RUN/METHOD/boxes.json     a method's selection, COCO JSON with scores
RUN/evaluation.json       CorLoc of every method, where the target's truth is known
"""

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from torch import Tensor

from pairloc.bags.extract import extract
from pairloc.detector.proposer import WEIGHTS, Proposer, for_transfer, train
from pairloc.bags.store import BagStore
from pairloc.settings import RunSettings, Settings
from pairloc.formats.coco import write_boxes
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.formats.reading import read, read_annotated, read_boxes
from pairloc.curation.scenes import write_scenes
from pairloc.runs.fine_tuning import decide, fine_tune, instances, read_opinion
from pairloc.errors import InputError
from pairloc.evaluation.recall import recall_of_store
from pairloc.evaluation.table import align, evaluate_methods
from pairloc.io import read_json, reason, sha256, write_json
from pairloc.localization.alternate import State
from pairloc.bags.tensors import Bags
from pairloc.localization.confidence import Calibration, calibrate, confidence
from pairloc.localization.descent import Curve
from pairloc.localization.functions import WEIGHTS as TRANSFER
from pairloc.localization.functions import TransferScores
from pairloc.localization.problems import conditional_scores
from pairloc.localization.methods import run_method, settings_of
from pairloc.localization.refining import refined
from pairloc.localization.target import Target, scored_boxes
from pairloc.localization.transfer import Labels, label_proposals, learn_transfer
from pairloc.progress import track
from pairloc.sharing import ALONE, Share
from pairloc.runs.staging import CONFIG, DONE, Say, Stage, Staged
from pairloc.weights import weights_folder


class Run(Staged):
    """A run in a folder."""

    def __init__(
        self, folder: Path, settings: RunSettings, device: str = "cpu", say: Say = print, share: Share = ALONE
    ) -> None:
        self.settings = own = settings
        external = [_hash(own.data.source), _hash(own.data.target)]
        self.learned = None if own.weights is None else weights_folder(own.weights)
        data = Stage("data", [_plain(own.data.model_copy(update={"truth": None})), external], (), self._prepare)
        inputs: tuple[str, ...]
        if self.learned is not None:
            known = [sha256(self.learned / file) for file in ("proposer/" + WEIGHTS, "transfer/" + TRANSFER)]
            known += [sha256(file) for file in self.learned.glob("calibration/calibration.json")]
            stages = [data, Stage("bags", [_known_by(own.extract), known], ("data",), self._extract, shared=True)]
            inputs = ("bags",)
        else:
            stages = [
                data,
                Stage("proposer", _known_by(own.proposer), ("data",), self._propose, shared=own.proposer.shared),
                Stage(
                    "bags",
                    [_known_by(own.extract), own.transfer_images],
                    ("data", "proposer"),
                    self._extract,
                    shared=True,
                ),
                Stage("transfer", _known_by(own.transfer), ("bags",), self._transfer),
                Stage("calibration", [_known_by(own.transfer), _known_by(own.learning)], ("bags",), self._calibrate),
            ]
            inputs = ("bags", "transfer", "calibration")
        for method in own.methods:
            if method == "fine-tuned":
                stages.append(Stage(method, _known_by(own.fine_tune), ("full",), self._fine_tune, shared=True))
            else:
                stages.append(
                    Stage(method, _known_by(own.learning), inputs, partial(self._method, method), shared=True)
                )
        stages.append(Stage("evaluation", _hash(own.data.truth), ("data", "bags", *own.methods), self._evaluate))
        super().__init__(folder, _plain(settings), stages, device, say, share)

    def run(self) -> dict[str, Any]:
        """Do what is missing; the evaluation."""
        self.work()
        evaluation: dict[str, Any] = read_json(self.folder / "evaluation" / "evaluation.json")
        return evaluation

    # what the stages work on

    @cached_property
    def source(self) -> tuple[Dataset, GroundTruth]:
        """The annotated source."""
        if self.settings.data.scenes is not None:
            return read_annotated(self.folder / "data" / "scenes" / "source.json")
        assert self.settings.data.source is not None
        return read_annotated(self.settings.data.source, images=self.settings.data.source_images)

    @cached_property
    def target(self) -> Dataset:
        """The tagged target."""
        if self.settings.data.scenes is not None:
            return read(self.folder / "data" / "scenes" / "target_tags.csv")
        assert self.settings.data.target is not None
        return read(self.settings.data.target, images=self.settings.data.target_images)

    @cached_property
    def truth(self) -> tuple[Dataset, GroundTruth] | None:
        """The target's boxes, where they are known, under the images and classes of the target."""
        file = self.settings.data.truth
        if self.settings.data.scenes is not None:
            file = self.folder / "data" / "scenes" / "target_truth.json"
        return None if file is None else (self.target, _under(self.target, *read_annotated(file)))

    @cached_property
    def transfer_scores(self) -> TransferScores:
        """The transfer scores that were learned."""
        return TransferScores.load((self.learned or self.folder) / "transfer").to(self.device)

    @cached_property
    def target_bags(self) -> Target:
        """The target as learning sees it."""
        return Target.from_store(
            BagStore(self.folder / "bags" / "target"), self.transfer_scores, self.settings.learning, device=self.device,
            memory=self._memory,
        )  # fmt: skip

    def some_target(self, pictures: int | None) -> tuple[Target, tuple[Dataset, GroundTruth]]:
        """The target, or so many pictures of it drawn at random, with its truth."""
        if self.truth is None:
            raise InputError(f"{self.folder}: has no truth to measure CorLoc with")
        if pictures is None or pictures >= len(self.target):
            return self.target_bags, self.truth
        drawn = np.sort(np.random.default_rng(self.settings.seed).permutation(len(self.target))[:pictures])
        place = np.full(len(self.target), -1)
        place[drawn] = np.arange(pictures)
        dataset = self.target.subset(drawn.tolist())
        store = BagStore(self.folder / "bags" / "target")
        bags = Target.from_store(
            store, self.transfer_scores, self.settings.learning, device=self.device, memory=self._memory,
            indices=drawn.tolist(), dataset=dataset,
        )  # fmt: skip
        return bags, (dataset, self.truth[1].relabelled(place, np.arange(len(dataset.classes))))

    @property
    def _memory(self) -> int:
        return int(self.settings.memory * 1e9)

    # the stages

    def _prepare(self, folder: Path) -> None:
        if self.settings.data.scenes is not None:
            scenes = folder / "scenes"
            shutil.rmtree(scenes, ignore_errors=True)
            scenes.mkdir()
            write_scenes(scenes, self.settings.data.scenes, lambda items, n: track(items, n, "drawing scenes"))
        shared = sorted(set(self.source[0].classes) & set(self.target.classes)) if self.learned is None else []
        if shared and not self.settings.data.allow_overlap:
            names = ", ".join(repr(name) for name in shared[:5])
            raise InputError(
                f"{len(shared)} classes are in source and target ({names}): the method transfers to other classes; "
                "remove them from one side, or set data.allow_overlap"
            )
        known = set(self.target.classes)
        unused = [name for name, images in zip(self.target.classes, self.target.positives, strict=True) if not images]
        for name in unused:
            self.say(f"class {name!r} has no tagged picture and gets no box")
        for name, images in zip(self.target.classes, self.target.positives, strict=True):
            if len(images) == 1:
                self.say(f"class {name!r} has one tagged picture: its box is chosen by its unary score alone")
        if not known:
            raise InputError("the target has no classes")

    def _propose(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        share = self.share if self.settings.proposer.shared else ALONE
        with SummaryWriter(str(folder / "tensorboard")) if share.leads else nullcontext() as writer:
            own = self.settings.proposer
            train(*self.source, own, folder, device=self.device, say=self.say, writer=writer, share=share)

    def _extract(self, folder: Path) -> None:
        parts = {"target": self.target}
        if self.learned is None:
            dataset, truth = self.source
            chosen = for_transfer(dataset, truth, self.settings.proposer, self.settings.transfer_images)
            parts = {"source": dataset.subset(chosen), "target": self.target}
        for name, part in parts.items():
            extract(
                part, (self.learned or self.folder) / "proposer", folder / name, self.settings.extract,
                device=self.device, rank=self.share.rank, world=self.share.world,
                track=partial(track, what=f"extracting {name} shards"),
            )  # fmt: skip

    @cached_property
    def _labelled(self) -> tuple[Bags, Labels]:
        """The source's bags, and the class of every proposal."""
        own, store = self.settings.transfer, BagStore(self.folder / "bags" / "source")
        options: dict[str, Any] = {"device": self.device, "memory": self._memory, "seed": own.seed}
        bags = Bags(store, own.features, dimensions=own.dimensions, geometry=own.geometry, **options)
        return bags, label_proposals(bags, *self.source, own)

    def _transfer(self, folder: Path) -> None:
        scores, curve = learn_transfer(*self._labelled, self.settings.transfer)
        scores.save(folder)
        write_json(folder / "curve.json", curve)
        _draw_curves(folder, [curve])

    def _calibrate(self, folder: Path) -> None:
        found = calibrate(*self._labelled, self.settings.transfer, self.settings.learning)
        write_json(folder / "calibration.json", vars(found))
        del self._labelled

    def _method(self, method: str, folder: Path) -> None:
        start, own = time.perf_counter(), self.settings.learning
        if method == "mi-svm" and not self.share.leads:
            return
        state = run_method(
            method, self.target_bags, self.transfer_scores, own, folder, lambda line: self.say(f"  {line}"), self.share
        )
        if not self.share.leads:
            return
        learning = settings_of(method, own)
        self._finish(folder, method, state, refined(self.target_bags, self.transfer_scores, state, learning))
        self.say(f"  {sum(map(len, state.selection))} boxes, {time.perf_counter() - start:.1f} s")

    def _fine_tune(self, folder: Path) -> None:
        own, learning, target = self.settings.fine_tune, self.settings.learning, self.target_bags
        full = self.folder / "full"
        state = run_method("full", target, self.transfer_scores, learning, full, share=self.share)  # it is done
        start = Proposer.load((self.learned or self.folder) / "proposer")
        found = align(*read_boxes(full / "boxes.json"), self.target)
        fine_tune(
            self.target, target, found, state.fold, start, own, folder, device=self.device, share=self.share,
            say=lambda line: self.say(f"  {line}"),
        )  # fmt: skip
        self.share.barrier()
        if not self.share.leads:
            return
        scores = tuple(
            conditional_scores(target, self.transfer_scores, state.scores, state.selection, label, learning, state.fold)
            for label in range(len(target.classes))
        )
        opinion = read_opinion(target, folder, int(state.fold.max()) + 1)
        selection, gaps, boxes = decide(scores, opinion, own, learning.refine)
        self._finish(folder, "full", replace(state, selection=selection, gaps=gaps), boxes)
        every = instances(target, opinion, boxes, own.sure)
        write_boxes(folder / "instances.json", self.target, every)
        self.say(f"  {sum(map(len, selection))} boxes, {len(every)} instances")

    def _finish(self, folder: Path, method: str, state: State, found: tuple[Tensor, ...]) -> None:
        """Write what a method found, with the confidence in it, and how it came to it."""
        known = (self.learned or self.folder) / "calibration" / "calibration.json"
        calibration = Calibration(**read_json(known)) if known.is_file() else Calibration()
        learning = settings_of(method, self.settings.learning)
        sure = confidence(self.target_bags, self.transfer_scores, state, learning, calibration)
        write_boxes(folder / "boxes.json", self.target, scored_boxes(self.target_bags, found, sure))
        history = [vars(step) for step in state.history]
        facts = {"converged": state.converged, "n_iter": state.n_iter, "curves": state.curves}
        write_json(folder / "history.json", {"history": history, **facts})
        _draw_curves(folder, state.curves)

    def _evaluate(self, folder: Path) -> None:
        seconds = {}
        for method in self.settings.methods:
            seconds[method] = read_json(self.folder / method / DONE)["seconds"]
        if self.truth is None:
            write_json(folder / "evaluation.json", {"methods": {}, "seconds": seconds})
            return
        files: dict[str, Path] = {method: self.folder / method / "boxes.json" for method in self.settings.methods}
        ceiling = recall_of_store(BagStore(self.folder / "bags" / "target"), *self.truth)["images"]
        found = evaluate_methods(files, *self.truth)
        write_json(folder / "evaluation.json", found | {"ceiling": ceiling, "seconds": seconds}, indent=1)


def open_run(folder: Path, device: str = "cpu") -> Run:
    """A run that was made before."""
    try:
        settings = RunSettings.model_validate(read_json(folder / CONFIG))
    except ValidationError as error:
        raise InputError(f"{folder}: is not a run ({reason(error)})") from error
    return Run(folder, settings, device)


def _under(dataset: Dataset, annotated: Dataset, truth: GroundTruth) -> GroundTruth:
    """The truth under the indices of the target's data set."""
    image = np.array([-1 if place is None else place for place in dataset.places(annotated)], dtype=np.int64)
    names = {name: index for index, name in enumerate(dataset.classes)}
    label = np.array([names.get(name, -1) for name in annotated.classes], dtype=np.int64)
    return truth.relabelled(image, label)


def _draw_curves(folder: Path, curves: Sequence[Curve]) -> None:
    """Curves for TensorBoard, one after the other; exact scores have none."""
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    if not any(curves):
        return
    from torch.utils.tensorboard import SummaryWriter

    done = 0
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for curve in curves:
            for row in curve:
                for name in ("loss", "held-out loss"):
                    writer.add_scalar(f"{folder.name}/{name}", row[name], done + row["step"])
            done += int(curve[-1]["step"]) if curve else 0


def _plain(settings: Any) -> Any:
    return json.loads(settings.model_dump_json())


def _known_by(settings: Settings) -> Any:
    return json.loads(settings.known_by())


def _hash(path: Path | None) -> str:
    """What an input is known by: a file by its content, a folder by the names, sizes and times of its files."""
    if path is None or not path.exists():
        return str(path)
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    listed = [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
