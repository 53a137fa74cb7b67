from pathlib import Path

import numpy as np
import pytest

from helpers import TINY
from pairloc.curation.scenes import write_scenes
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.detector.detect import detect, relabelled, train_detector
from pairloc.detector.model import Proposer
from pairloc.errors import InputError
from pairloc.formats.reading import read_annotated
from pairloc.settings import SceneSettings


def test_training_on_found_boxes_equals_training_on_the_same_ground_truth(tmp_path: Path) -> None:
    write_scenes(tmp_path, SceneSettings(size=64, source_images=24, target_images=2))
    dataset, truth = read_annotated(tmp_path / "source.json")
    settings = TINY.model_copy(update={"held_out": 0.0})
    boxes = ScoredBoxes(truth.image, truth.label, truth.boxes, np.ones(len(truth)))
    one = train_detector(dataset, truth, settings, tmp_path / "a")
    other = train_detector(dataset, boxes, settings, tmp_path / "b")
    for name, tensor in one.model.state_dict().items():
        assert tensor.equal(other.model.state_dict()[name])
    with pytest.raises(InputError, match="a training on other data"):
        train_detector(dataset, truth.where(truth.label > 0), settings, tmp_path / "a")
    found = detect(Proposer.load(tmp_path / "a"), dataset, least=0.0, most=7)
    counts = np.bincount(found.image, minlength=len(dataset))
    assert counts.max() <= 7
    assert counts.sum() == len(found) > 0
    assert (found.boxes[:, 2:] >= found.boxes[:, :2]).all()
    assert found.label.min() >= 0
    assert found.label.max() < len(dataset.classes)
    dataset.path(1).unlink()
    with pytest.raises(InputError, match="the file does not exist"):
        detect(one, dataset)
    errors: dict[int, str] = {}
    rest = detect(one, dataset, least=0.0, most=7, unreadable=errors.__setitem__)
    assert errors == {1: f"{dataset.path(1)}: the file does not exist"}
    assert (rest.image == found.image[found.image != 1]).all()
    fewer = Dataset(dataset.images, dataset.classes[::-1][:3], ((),) * len(dataset))
    kept = relabelled(found, dataset.classes, fewer)
    assert {dataset.classes[::-1][c] for c in kept.label} <= set(fewer.classes)
    with pytest.raises(InputError, match="class_agnostic and held_classes are for proposers only"):
        train_detector(dataset, truth, settings.model_copy(update={"class_agnostic": True}), tmp_path / "c")


def test_frozen_trains_only_the_box_head(tmp_path: Path) -> None:
    write_scenes(tmp_path, SceneSettings(size=64, source_images=16, target_images=2))
    dataset, truth = read_annotated(tmp_path / "source.json")
    settings = TINY.model_copy(update={"held_out": 0.0, "epochs": 1})
    start = train_detector(dataset, truth, settings, tmp_path / "start")
    frozen = settings.model_copy(update={"frozen": True, "min_background_iou": 0.1})
    found = train_detector(dataset, truth, frozen, tmp_path / "frozen", start=start)
    before, after = start.model.state_dict(), Proposer.load(tmp_path / "frozen").model.state_dict()
    assert {name for name in after if not after[name].equal(found.model.state_dict()[name])} == set()
    changed = {name for name in after if not after[name].equal(before[name])}
    assert changed == {name for name, _ in start.model.named_parameters() if name.startswith("roi_heads.")}
    with pytest.raises(InputError, match="no weights to start from"):
        train_detector(dataset, truth, frozen, tmp_path / "none")
