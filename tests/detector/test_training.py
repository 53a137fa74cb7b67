import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from helpers import TINY
from pairloc.curation.scenes import write_scenes
from pairloc.detector.backbones import BACKBONES, Body
from pairloc.detector.model import Proposer, build
from pairloc.detector.training import held_classes, lr_factor, train
from pairloc.errors import InputError
from pairloc.formats.reading import read_annotated
from pairloc.settings import ProposerSettings, SceneSettings


class KilledError(Exception):
    """Simulates a killed process."""


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = Proposer.load(folder).model.state_dict()
    return state


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()]


def kill_in_epoch_2(line: str) -> None:
    if line.startswith("epoch 2"):
        raise KilledError


def test_training_resumes_after_an_epoch_to_the_same_weights(scenes: Path, tmp_path: Path) -> None:
    source = read_annotated(scenes / "source.json")
    two = TINY.model_copy(update={"epochs": 2})
    train(*source, two, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(*source, two, tmp_path / "killed", log=kill_in_epoch_2)
    with pytest.raises(
        InputError, match=r"killed: the training is not finished; run the same command again to resume it$"
    ):
        Proposer.load(tmp_path / "killed")
    curves = tmp_path / "killed" / "curves.jsonl"
    curves.write_text(curves.read_text() + '{"epoch": 2}\n')  # as if killed before the checkpoint was written
    train(*source, two.model_copy(update={"workers": 1}), tmp_path / "killed")  # the number of workers does not matter
    whole, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    for one, other in zip(rows(tmp_path / "whole"), rows(tmp_path / "killed"), strict=True):
        assert one | {"images/s": 0} == other | {"images/s": 0}
    with pytest.raises(InputError, match="training with other settings"):
        train(*source, TINY.model_copy(update={"lr": 0.5, "epochs": 3}), tmp_path / "killed")


def test_a_damaged_checkpoint_is_reported(scenes: Path, proposer: Path, tmp_path: Path) -> None:
    source = read_annotated(scenes / "source.json")
    whole = (proposer / "training.safetensors").read_bytes()
    for content in (b"damaged", whole[: len(whole) // 2]):
        (tmp_path / "training.safetensors").write_bytes(content)
        with pytest.raises(InputError, match=r"^[^\n]*training.safetensors: is damaged [^\n]*; delete it"):
            train(*source, TINY, tmp_path)


def test_curves_are_passed_to_the_writer(scenes: Path, tmp_path: Path) -> None:
    class Writer:
        def __init__(self) -> None:
            self.values: dict[str, float] = {}

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            assert global_step == 1
            self.values[tag] = scalar_value

    writer = Writer()
    train(*read_annotated(scenes / "source.json"), TINY, tmp_path, writer=writer, resumable=False)
    row = json.loads((tmp_path / "curves.jsonl").read_text())
    assert writer.values == {f"proposer/{name}": value for name, value in row.items()}
    assert not (tmp_path / "training.safetensors").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_reported(workers: int, tmp_path: Path) -> None:
    write_scenes(tmp_path, SceneSettings(size=64, source_images=4, target_images=1))
    dataset, truth = read_annotated(tmp_path / "source.json")
    dataset.path(2).write_bytes(b"no image")
    with pytest.raises(InputError, match=r"^[^\n]*: is not an image in a supported format$"):
        train(dataset, truth, TINY.model_copy(update={"held_out": 0.0, "workers": workers}), tmp_path / "out")


def test_held_out_classes_are_not_trained_on(scenes: Path, tmp_path: Path) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    train_boxes, recall_boxes = held_classes(dataset, truth, TINY.model_copy(update={"held_classes": 4}))
    assert not set(train_boxes.label.tolist()) & set(recall_boxes.label.tolist())
    assert len(train_boxes) + len(recall_boxes) == len(truth)
    assert len(set(recall_boxes.label.tolist())) <= 4
    with pytest.raises(InputError, match=r"held_classes: is \d+ of \d+ classes; keep one or more"):
        held_classes(dataset, truth, TINY.model_copy(update={"held_classes": len(dataset.classes)}))


def test_the_learning_rate_rises_then_falls() -> None:
    settings = ProposerSettings(warm_up=10)
    rates = [lr_factor(step, 100, settings) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert max(rates) <= 1
    assert rates[-1] < 0.02


def test_missing_boxes_and_unknown_backbones_are_refused(scenes: Path, tmp_path: Path) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    with pytest.raises(InputError, match="no backbone 'resnet9000'"):
        train(dataset, truth, TINY.model_copy(update={"backbone": "resnet9000", "pretrained": False}), tmp_path / "a")
    with pytest.raises(InputError, match="no box to train"):
        train(dataset, truth.where(truth.image < 0), TINY, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_backbone_learns_at_its_own_rate(scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a factor of zero the body stays as it was (but for the decay, which is zero too) and the rest learns."""
    whole = BACKBONES[TINY.backbone]

    def still(pretrained: bool, levels: int) -> Body:
        return replace(whole(pretrained, levels), lr_factor=0.0)

    monkeypatch.setitem(BACKBONES, TINY.backbone, still)
    torch.manual_seed(TINY.seed)
    start = build(TINY, 1).state_dict()
    after = train(*read_annotated(scenes / "source.json"), TINY, tmp_path / "still").model.state_dict()
    learned = {name for name, tensor in after.items() if tensor.is_floating_point() and "box_predictor" not in name}
    changed = {name for name in learned if not torch.equal(after[name], start[name])}
    assert changed and not any(name.startswith("backbone.maps.") for name in changed)
