import json
from pathlib import Path

import pytest
import torch

from helpers import TINY
from pairloc.curation.scenes import write_scenes
from pairloc.detector.model import Proposer
from pairloc.detector.training import held_classes, rate, train
from pairloc.errors import InputError
from pairloc.formats.reading import read_annotated
from pairloc.settings import ProposerSettings, SceneSettings


class KilledError(Exception):
    """Stands for a kill."""


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = Proposer.load(folder).model.state_dict()
    return state


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()]


def dies(line: str) -> None:
    if line.startswith("epoch 2"):
        raise KilledError


def test_training_resumes_after_an_epoch_to_the_same_weights(scenes: Path, tmp_path: Path) -> None:
    source = read_annotated(scenes / "source.json")
    two = TINY.model_copy(update={"epochs": 2})
    train(*source, two, tmp_path / "whole")
    with pytest.raises(KilledError):
        train(*source, two, tmp_path / "killed", log=dies)
    with pytest.raises(InputError, match=r"killed: the training is not finished; run the same command again to go on$"):
        Proposer.load(tmp_path / "killed")
    curves = tmp_path / "killed" / "curves.jsonl"
    curves.write_text(curves.read_text() + '{"epoch": 2}\n')  # as a kill before the checkpoint would leave it
    train(*source, two.model_copy(update={"workers": 1}), tmp_path / "killed")  # who reads the images is all one
    whole, killed = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    rows = [
        list(map(json.loads, (tmp_path / f / "curves.jsonl").read_text().splitlines())) for f in ("whole", "killed")
    ]
    for one, other in zip(*rows, strict=True):
        assert one | {"images/s": 0} == other | {"images/s": 0}
    with pytest.raises(InputError, match="training with other settings"):
        train(*source, TINY.model_copy(update={"lr": 0.5, "epochs": 3}), tmp_path / "killed")


def test_a_damaged_checkpoint_is_one_sentence(scenes: Path, proposer: Path, tmp_path: Path) -> None:
    source = read_annotated(scenes / "source.json")
    whole = (proposer / "training.safetensors").read_bytes()
    for content in (b"damaged", whole[: len(whole) // 2]):
        (tmp_path / "training.safetensors").write_bytes(content)
        with pytest.raises(InputError, match=r"^[^\n]*training.safetensors: is damaged [^\n]*; delete it"):
            train(*source, TINY, tmp_path)


def test_curves_go_to_any_writer(scenes: Path, tmp_path: Path) -> None:
    class Writer:
        def __init__(self) -> None:
            self.told: dict[str, float] = {}

        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            assert global_step == 1
            self.told[tag] = scalar_value

    writer = Writer()
    train(*read_annotated(scenes / "source.json"), TINY, tmp_path, writer=writer, resumable=False)
    row = json.loads((tmp_path / "curves.jsonl").read_text())
    assert writer.told == {f"proposer/{name}": value for name, value in row.items()}
    assert not (tmp_path / "training.safetensors").exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_image_that_cannot_be_read_is_one_sentence(workers: int, tmp_path: Path) -> None:
    write_scenes(tmp_path, SceneSettings(size=64, source_images=4, target_images=1))
    dataset, truth = read_annotated(tmp_path / "source.json")
    dataset.path(2).write_bytes(b"no image")
    with pytest.raises(InputError, match=r"^[^\n]*: is not an image of a known format$"):
        train(dataset, truth, TINY.model_copy(update={"held_out": 0.0, "workers": workers}), tmp_path / "out")


def test_classes_held_out_are_not_taught(scenes: Path, tmp_path: Path) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    taught, asked = held_classes(dataset, truth, TINY.model_copy(update={"held_classes": 4}))
    assert not set(taught.label.tolist()) & set(asked.label.tolist())
    assert len(taught) + len(asked) == len(truth)
    assert len(set(asked.label.tolist())) <= 4
    with pytest.raises(InputError, match="leave none to learn"):
        held_classes(dataset, truth, TINY.model_copy(update={"held_classes": len(dataset.classes)}))


def test_the_learning_rate_rises_then_falls() -> None:
    settings = ProposerSettings(warm_up=10)
    rates = [rate(step, 100, settings) for step in range(100)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert max(rates) <= 1
    assert rates[-1] < 0.02


def test_nothing_to_learn_and_no_backbone(scenes: Path, tmp_path: Path) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    with pytest.raises(InputError, match="no backbone 'resnet9000'"):
        train(dataset, truth, TINY.model_copy(update={"backbone": "resnet9000", "pretrained": False}), tmp_path / "a")
    with pytest.raises(InputError, match="no box to train"):
        train(dataset, truth.where(truth.image < 0), TINY, tmp_path / "a")
    assert not (tmp_path / "a").exists()
