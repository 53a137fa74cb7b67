"""A small tree in the layout of ILSVRC becomes the paper's table: split, two proposers, folds, baselines."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import voc_xml
from pairloc import Localizer, read
from pairloc.boxes import to_xywh
from pairloc.curation.scenes import write_scenes
from pairloc.evaluation.table import Evaluation
from pairloc.formats.reading import read_annotated
from pairloc.presets import read_config
from pairloc.runs.run import Run
from pairloc.settings import SceneSettings
from runs.calling import call

CONFIG = """
preset = "paper-ilsvrc"
methods = ["warm-up-unary", "warm-up", "unary", "full", "mi-svm", "deselaers", "lsda", "tang"]
[data]
source = "split/source.json"
source_images = "ILSVRC/Data/DET"
target = "split/target_tags.csv"
target_images = "ILSVRC/Data/DET"
truth = "split/target_truth.json"
[proposer]
backbone = "resnet18"
pretrained = false
image_size = 64
pyramid = 16
levels = 2
roi = 3
head = 32
sampled_rois = 16
batch = 8
warm_up = 2
anchor = 16
[extract]
proposals = 12
class_features = "none"
[transfer]
images = 100
training = { steps = 10, pairs = 4 }
[localization]
rounds = 1
folds = 2
features = { kind = "transfer" }
training = { steps = 5, pairs = 4 }
[mi_svm]
rounds = 1
folds = 2
features = { kind = "transfer", geometry = false }
[deselaers]
rounds = 1
features = { kind = "transfer", geometry = false }
"""


def write_tree(root: Path, scenes: Path) -> None:
    """Convert generated scenes to ILSVRC's layout: half of them validation, half training images."""
    names: dict[str, str] = {}
    for part in ("source", "target_truth"):
        dataset, truth = read_annotated(scenes / f"{part}.json")
        for index in range(len(dataset)):
            stem = f"{part}_{index:04d}"
            name = f"val/ILSVRC2013_val_{stem}" if index % 2 else f"train/ILSVRC2013_train/n/{stem}"
            boxes = truth.of_image(index)
            objects = []
            for label, box in zip(boxes.label.tolist(), boxes.boxes.tolist(), strict=True):
                synset = names.setdefault(dataset.classes[label], f"n{len(names):08d}")
                objects.append((synset, *(int(value) for value in box)))
            xml = root / "Annotations" / "DET" / f"{name}.xml"
            xml.parent.mkdir(parents=True, exist_ok=True)
            xml.write_text(voc_xml(stem, *objects, size=(64, 64)))  # type: ignore[arg-type]
            file = root / "Data" / "DET" / f"{name}.jpeg"
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(dataset.path(index), file)
    lines = [f"{synset} {number} {name}" for number, (name, synset) in enumerate(names.items(), start=1)]
    (root / "map_det.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole experiment on such a tree."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ilsvrc")
    (folder / "scenes").mkdir()
    write_scenes(
        folder / "scenes", SceneSettings(size=64, source_images=40, target_images=24), lambda items, total: items
    )
    write_tree(folder / "ILSVRC", folder / "scenes")
    done = call("split", "ilsvrc100", "--root", folder / "ILSVRC", "--out", folder / "split", "--boxes-per-class", 20)
    assert done.status == 0, done.text
    (folder / "mine.toml").write_text(CONFIG)
    Run(folder / "run", read_config(folder / "mine.toml"), log=lambda line: None).run()
    return folder


def test_every_method_finds_a_box_for_every_tag(finished: Path) -> None:
    run = finished / "run"
    evaluation = Evaluation.model_validate_json((run / "evaluation" / "evaluation.json").read_text())
    tags = len(json.loads((run / "full" / "boxes.json").read_text())["annotations"])
    assert tags > 0
    for method in evaluation.methods:
        assert len(json.loads((run / method / "boxes.json").read_text())["annotations"]) == tags


def test_boxes_and_features_come_from_two_proposers(finished: Path) -> None:
    run = finished / "run"
    agnostic, features = (
        json.loads((run / name / "proposer.json").read_text())["settings"] for name in ("agnostic-proposer", "proposer")
    )
    assert agnostic["class_agnostic"]
    assert not features["class_agnostic"]
    plan = json.loads((run / "bags" / "target" / "plan.json").read_text())["settings"]
    assert plan["proposer"] != plan["features"]


def test_the_test_set_is_the_whole_of_val2(finished: Path) -> None:
    """Images of val2 without a target class are in it: leaving them out would raise mAP."""
    target, _ = read_annotated(finished / "split" / "target_truth.json")
    test, truth = read_annotated(finished / "split" / "test_truth.json")
    assert test.classes == target.classes
    assert any(not len(truth.of_image(index).boxes) for index in range(len(test)))


def test_the_table_has_every_row(finished: Path) -> None:
    done = call("study", "table", finished / "run", "--as", "json")
    assert done.status == 0, done.text
    rows = json.loads(done.text[done.text.index("[") :])
    assert [row["method"] for row in rows][-4:] == ["mi-svm", "deselaers", "lsda", "tang"]
    full = next(row for row in rows if row["method"] == "full")
    assert full["training"] > 0
    assert full["inference"] > 0


def test_python_and_the_command_line_use_both_proposers(finished: Path, tmp_path: Path) -> None:
    """The same boxes from `localize`, from Python, and from weights that Python saved."""
    tags, images = finished / "split" / "target_tags.csv", finished / "ILSVRC" / "Data" / "DET"
    dataset = read(tags, images=images)
    localizer = Localizer.load(finished / "run", device="cpu")
    localizer.save(tmp_path / "saved")
    names = [dataset.names(index) for index in range(len(dataset))]
    found = localizer.localize([dataset.path(index) for index in range(len(dataset))], names)
    expected = [(box.tag, *np.round(to_xywh(np.array(box.box)), 2).tolist()) for image in found for box in image.boxes]
    for weights in (finished / "run", tmp_path / "saved"):
        out = tmp_path / f"out-{weights.name}"
        assert call("localize", images, "--tags", tags, "--weights", weights, "--out", out).status == 0
        content = json.loads((out / "boxes.json").read_text())
        classes = {entry["id"]: entry["name"] for entry in content["categories"]}
        boxes = [(classes[entry["category_id"]], *entry["bbox"]) for entry in content["annotations"]]
        assert sorted(boxes) == sorted(expected)
