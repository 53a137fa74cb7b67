"""Fine-tuning: a network judges only what it never saw, and both opinions count by their weight."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers import TINY
from pairloc.bags.extract import extract
from pairloc.bags.store import BagStore
from pairloc.boxes import iou
from pairloc.curation.scenes import write_scenes
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.scored import ScoredBoxes
from pairloc.detector.model import Proposer, build
from pairloc.detector.propose import ImageFeatures, predict
from pairloc.detector.reading import batches
from pairloc.formats.reading import read_annotated
from pairloc.localization.alternate import State
from pairloc.localization.confidence import Calibration, confidence
from pairloc.localization.predictions import Predictions, decide, instances
from pairloc.localization.result import Localization
from pairloc.runs.fine_tuning import fine_tune
from pairloc.settings import BoxSettings, ExtractSettings, FineTuneSettings, SceneSettings

SETTINGS = FineTuneSettings(steps=2, batch=8, warm_up=1)
PLAIN = BoxSettings(voting_iou=0.0)


@dataclass(frozen=True)
class Scene:
    """Images with one box of every class that is in them, their bags, folds, and an untaught proposer."""

    dataset: Dataset
    store: BagStore
    before: Localization
    boxes: ScoredBoxes
    start: Proposer

    def images(self, *indices: int) -> list[Tensor]:
        paths = [self.dataset.path(index) for index in range(len(self.dataset))]
        return next(batches(paths, [list(indices)], 0)).every().to("cpu")

    def proposals(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self.store.bag(index).boxes))


def localization(
    dataset: Dataset, proposals: Tensor, scores: tuple[Tensor, ...], fold: Tensor, agreement: float = 1.0
) -> Localization:
    """A result whose selection is the best of scores (M, B) of every class."""
    positives = tuple(torch.tensor(images, dtype=torch.int64) for images in dataset.positives)
    selection = tuple(own.argmax(dim=1) for own in scores)
    state = State(selection, tuple(torch.zeros(len(own), dtype=torch.float64) for own in scores), fold)
    agreed = tuple(torch.full((len(own),), agreement, dtype=torch.float64) for own in scores)
    nothing = ScoredBoxes(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0))
    return Localization(dataset, nothing, state, positives, proposals, scores, agreed)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, SceneSettings(size=64, source_images=14, target_images=2))
    dataset, truth = read_annotated(folder / "source.json")
    seen = {(int(i), int(c)): row for row, (i, c) in enumerate(zip(truth.image, truth.label, strict=True))}
    rows = [seen[key] for key in sorted(seen)]
    boxes = ScoredBoxes(truth.image[rows], truth.label[rows], truth.boxes[rows], np.ones(len(rows)))
    torch.manual_seed(0)
    proposer = Proposer(build(TINY, 5, pretrained=False), TINY, tuple("abcde"))
    proposer.save(folder / "proposer")
    settings = ExtractSettings(proposals=7, nms=0.5, whole_image=False, class_features="none")
    extract(dataset, folder / "proposer", folder / "bags", settings)
    store = BagStore(folder / "bags")
    table = torch.zeros(len(dataset), 7, 4)
    for row in range(len(dataset)):
        own = torch.from_numpy(np.array(store.bag(row).boxes))
        table[row, : len(own)] = own
    scores = tuple(torch.zeros(len(images), 7) for images in dataset.positives)
    return Scene(dataset, store, localization(dataset, table, scores, torch.arange(len(dataset)) % 3), boxes, proposer)


def test_nothing_is_moved_by_a_network_that_moves_nothing(scene: Scene) -> None:
    network = build(TINY, 4, pretrained=False).eval()
    torch.nn.init.zeros_(network.roi_heads.box_predictor.bbox_pred.weight)
    torch.nn.init.zeros_(network.roi_heads.box_predictor.bbox_pred.bias)
    proposals = [scene.proposals(i) for i in (0, 1)]
    said, moved = predict(ImageFeatures(network, scene.images(0, 1)), proposals)
    torch.testing.assert_close(said.exp().sum(dim=1), torch.ones(len(said)))
    for label in range(5):
        torch.testing.assert_close(moved[:, label], torch.cat(proposals), atol=1e-3, rtol=1e-4)


def test_moved_boxes_stay_in_the_image_and_are_not_empty(scene: Scene) -> None:
    network = build(TINY, 4, pretrained=False).eval()
    torch.nn.init.normal_(network.roi_heads.box_predictor.bbox_pred.bias, std=30)
    _, moved = predict(ImageFeatures(network, scene.images(0)), [scene.proposals(0)])
    assert moved.min() >= 0
    assert moved.max() <= 64
    assert (moved[..., 2:] - moved[..., :2]).min() >= 1


@pytest.fixture(scope="module")
def told(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Predictions]:
    """What is said of every fold."""
    folder = tmp_path_factory.mktemp("told")
    return folder, fine_tune(
        scene.dataset, scene.store, scene.before, scene.boxes, scene.start, SETTINGS, folder, log=lambda line: None
    )


def test_what_a_fold_is_told_does_not_depend_on_its_own_boxes(
    scene: Scene, told: tuple[Path, Predictions], tmp_path: Path
) -> None:
    other = ScoredBoxes(scene.boxes.image, scene.boxes.label, scene.boxes.boxes.copy(), scene.boxes.score)
    own = scene.before.state.fold.numpy()[scene.boxes.image] == 1
    other.boxes[own] = [1.0, 2.0, 30.0, 40.0]
    fine_tune(scene.dataset, scene.store, scene.before, other, scene.start, SETTINGS, tmp_path)
    names = [f"fold-{f}.safetensors" for f in range(3)]
    same = [(tmp_path / name).read_bytes() == (told[0] / name).read_bytes() for name in names]
    assert same == [False, True, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_what_is_told_is_not_asked_again_and_is_said_of_every_proposal(
    scene: Scene, told: tuple[Path, Predictions], tmp_path: Path
) -> None:
    """A fold that was interrupted is done again, the others are not; the result is the same to the byte."""
    names = [f"fold-{f}.safetensors" for f in range(3)]
    for name in (names[0], names[2]):
        (tmp_path / name).write_bytes((told[0] / name).read_bytes())
    (tmp_path / "network-1").mkdir()
    lines: list[str] = []
    arguments = (scene.dataset, scene.store, scene.before, scene.boxes, scene.start, SETTINGS, tmp_path)
    fine_tune(*arguments, log=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("network 2 of 3")
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (told[0] / name).read_bytes()
    predictions = told[1]
    for bags, said, moved in zip(scene.before.positives, predictions.score, predictions.boxes, strict=True):
        counts = torch.tensor([len(scene.proposals(bag)) for bag in bags.tolist()])
        assert torch.equal(torch.isfinite(said), torch.arange(7) < counts[:, None]) or not len(bags)
        assert moved.shape == (*said.shape, 4)


def test_without_folds_one_network_sees_all(scene: Scene, tmp_path: Path) -> None:
    state = replace(scene.before.state, fold=torch.zeros_like(scene.before.state.fold))
    predictions = fine_tune(
        scene.dataset, scene.store, replace(scene.before, state=state), scene.boxes, scene.start, SETTINGS, tmp_path
    )
    assert all(torch.isfinite(said).any(dim=1).all() for said in predictions.score)
    assert [path.name for path in tmp_path.iterdir()] == ["fold-0.safetensors"]


def opinions(seed: int) -> tuple[Localization, Predictions]:
    """One class in six of eight images, with nine proposals, and what networks might say of them."""
    generator = torch.Generator().manual_seed(seed)
    corner = 40 * torch.rand(6, 9, 2, generator=generator)
    boxes = torch.cat([corner, corner + 5 + 20 * torch.rand(6, 9, 2, generator=generator)], dim=2)
    said = torch.log_softmax(3 * torch.randn(6, 9, generator=generator), dim=1)
    scores = torch.randn(6, 9, generator=generator)
    tags: tuple[tuple[int, ...], ...] = ((0,), (), (0,), (0,), (), (0,), (0,), (0,))
    images = tuple(Image(i, f"{i}.jpg", (64, 64)) for i in range(8))
    dataset = Dataset(images, ("a",), tags)
    proposals = torch.zeros(8, 9, 4)
    proposals[torch.tensor(dataset.positives[0])] = boxes
    before = localization(dataset, proposals, (scores,), torch.zeros(8, dtype=torch.int64), agreement=0.5)
    return before, Predictions((said,), (boxes,))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**30))
def test_the_weight_decides_whose_choice_it_is(seed: int) -> None:
    before, predictions = opinions(seed)
    for weight, choice in ((1e-9, before.scores[0]), (1e9, predictions.score[0])):
        found, boxes = decide(before, predictions, FineTuneSettings(weight=weight), PLAIN, Calibration())
        selection, gaps = found.state.selection[0], found.state.gaps[0]
        assert torch.equal(selection, choice.argmax(dim=1))
        assert torch.equal(boxes[0], predictions.boxes[0][torch.arange(6), selection])
        assert np.array_equal(found.boxes.boxes, boxes[0].double().numpy())
        assert found.boxes.image.tolist() == before.positives[0].tolist()
        assert (gaps >= 0).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**30))
def test_the_networks_are_one_view_more_in_the_confidence(seed: int) -> None:
    """Of three views: those that agreed before, if their box is still the one, and the networks themselves."""
    before, predictions = opinions(seed)
    found, boxes = decide(before, predictions, SETTINGS, PLAIN, Calibration())
    rows = torch.arange(6)
    own = before.proposals[before.positives[0], before.state.selection[0]]
    same = torch.tensor([bool(iou(own[r : r + 1].numpy(), boxes[0][r : r + 1].numpy())[0, 0] > 0.5) for r in rows])
    expected = torch.where(same, 2 / 3, 1 / 3).double()
    torch.testing.assert_close(found.agreement[0], expected)
    sure = confidence(Calibration(), expected, found.state.gaps[0])
    np.testing.assert_allclose(found.boxes.score, sure.numpy().round(4))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**30), st.floats(0.05, 0.9))
def test_instances_are_the_boxes_and_all_others_that_are_sure_and_apart(seed: int, sure: float) -> None:
    before, predictions = opinions(seed)
    _, boxes = decide(before, predictions, SETTINGS, BoxSettings(voting_iou=0.5), Calibration())
    found = instances(before, predictions, boxes, sure)
    for place, bag in enumerate(before.positives[0].tolist()):
        own = found.boxes[found.image == bag]
        np.testing.assert_allclose(own[0], boxes[0][place].numpy(), rtol=1e-6)
        apart = iou(own, own)
        assert (apart[~np.eye(len(own), dtype=np.bool_)] <= 0.5 + 1e-6).all()
        likely = predictions.boxes[0][place][predictions.score[0][place].exp() >= sure].double().numpy()
        if len(likely):
            assert iou(likely, own).max(axis=1).min() >= 0.5 - 1e-6  # none that is sure is lost
    assert found.score.min() >= sure
