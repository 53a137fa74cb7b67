"""Fine-tuning: networks predict images they were not trained on; scores and predictions are weighted."""

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
from pairloc.localization.confidence import Calibration, confidence, plain_signals
from pairloc.localization.explanation import BEFORE, NETWORK, Explanation
from pairloc.localization.predictions import Predictions, decide, instances
from pairloc.localization.result import Localization
from pairloc.localization.sharing import Sharing
from pairloc.runs.fine_tuning import fine_tune
from pairloc.settings import BoxSettings, ExtractSettings, FineTuneSettings, SceneSettings

SETTINGS = FineTuneSettings(steps=2, batch=8, warm_up=1)
PLAIN = BoxSettings(voting_iou=0.0)


@dataclass(frozen=True)
class Scene:
    """Images with one box per class, their bags and folds, and an untrained proposer."""

    dataset: Dataset
    store: BagStore
    before: Localization
    boxes: ScoredBoxes
    start: Proposer

    def images(self, *indices: int) -> list[Tensor]:
        paths = [self.dataset.path(index) for index in range(len(self.dataset))]
        return next(batches(paths, [list(indices)], 0)).require_all().to("cpu")

    def proposals(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self.store.bag(index).boxes))


def localization(
    dataset: Dataset, proposals: Tensor, scores: tuple[Tensor, ...], fold: Tensor, agreement: float = 1.0
) -> Localization:
    """Return a result that selects the best of the scores (M, B) of every class."""
    positives = tuple(torch.tensor(images, dtype=torch.int64) for images in dataset.positives)
    selection = tuple(table.argmax(dim=1) for table in scores)
    state = State(selection, tuple(torch.zeros(len(table), dtype=torch.float64) for table in scores), fold)
    agreements = tuple(torch.full((len(table),), agreement, dtype=torch.float64) for table in scores)
    no_boxes = ScoredBoxes(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 4)), np.zeros(0))
    return Localization(dataset, no_boxes, state, positives, proposals, scores, agreements)


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
        boxes_of_bag = torch.from_numpy(np.array(store.bag(row).boxes))
        table[row, : len(boxes_of_bag)] = boxes_of_bag
    scores = tuple(torch.zeros(len(images), 7) for images in dataset.positives)
    return Scene(dataset, store, localization(dataset, table, scores, torch.arange(len(dataset)) % 3), boxes, proposer)


def test_zero_regression_keeps_the_proposals(scene: Scene) -> None:
    network = build(TINY, 4, pretrained=False).eval()
    torch.nn.init.zeros_(network.roi_heads.box_predictor.bbox_pred.weight)
    torch.nn.init.zeros_(network.roi_heads.box_predictor.bbox_pred.bias)
    proposals = [scene.proposals(i) for i in (0, 1)]
    log_probability, regressed = predict(ImageFeatures(network, scene.images(0, 1)), proposals)
    torch.testing.assert_close(log_probability.exp().sum(dim=1), torch.ones(len(log_probability)))
    for label in range(5):
        torch.testing.assert_close(regressed[:, label], torch.cat(proposals), atol=1e-3, rtol=1e-4)


def test_regressed_boxes_stay_in_the_image_and_are_not_empty(scene: Scene) -> None:
    network = build(TINY, 4, pretrained=False).eval()
    torch.nn.init.normal_(network.roi_heads.box_predictor.bbox_pred.bias, std=30)
    _, regressed = predict(ImageFeatures(network, scene.images(0)), [scene.proposals(0)])
    assert regressed.min() >= 0
    assert regressed.max() <= 64
    assert (regressed[..., 2:] - regressed[..., :2]).min() >= 1


@pytest.fixture(scope="module")
def predicted(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Predictions]:
    """The folder and the result of fine-tuning on all folds."""
    folder = tmp_path_factory.mktemp("predicted")
    return folder, fine_tune(
        scene.dataset, scene.store, scene.before, scene.boxes, scene.start, SETTINGS, folder, log=lambda line: None
    )


def test_the_predictions_of_a_fold_do_not_depend_on_its_boxes(
    scene: Scene, predicted: tuple[Path, Predictions], tmp_path: Path
) -> None:
    other = ScoredBoxes(scene.boxes.image, scene.boxes.label, scene.boxes.boxes.copy(), scene.boxes.score)
    in_fold = scene.before.state.fold.numpy()[scene.boxes.image] == 1
    other.boxes[in_fold] = [1.0, 2.0, 30.0, 40.0]
    fine_tune(scene.dataset, scene.store, scene.before, other, scene.start, SETTINGS, tmp_path)
    names = [f"fold-{f}.safetensors" for f in range(3)]
    same = [(tmp_path / name).read_bytes() == (predicted[0] / name).read_bytes() for name in names]
    assert same == [False, True, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_saved_folds_are_not_trained_again_and_all_proposals_are_predicted(
    scene: Scene, predicted: tuple[Path, Predictions], tmp_path: Path
) -> None:
    """Only an interrupted fold is trained again, and the result is identical to the byte."""
    names = [f"fold-{f}.safetensors" for f in range(3)]
    for name in (names[0], names[2]):
        (tmp_path / name).write_bytes((predicted[0] / name).read_bytes())
    (tmp_path / "network-1").mkdir()
    lines: list[str] = []
    arguments = (scene.dataset, scene.store, scene.before, scene.boxes, scene.start, SETTINGS, tmp_path)
    fine_tune(*arguments, log=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("network 2 of 3")
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (predicted[0] / name).read_bytes()
    predictions = predicted[1]
    for bags, log_probability, regressed in zip(
        scene.before.positives, predictions.score, predictions.boxes, strict=True
    ):
        counts = torch.tensor([len(scene.proposals(bag)) for bag in bags.tolist()])
        assert torch.equal(torch.isfinite(log_probability), torch.arange(7) < counts[:, None]) or not len(bags)
        assert regressed.shape == (*log_probability.shape, 4)


def test_without_folds_one_network_is_trained_on_all_images(scene: Scene, tmp_path: Path) -> None:
    state = replace(scene.before.state, fold=torch.zeros_like(scene.before.state.fold))
    predictions = fine_tune(
        scene.dataset, scene.store, replace(scene.before, state=state), scene.boxes, scene.start, SETTINGS, tmp_path
    )
    assert all(torch.isfinite(log_probability).any(dim=1).all() for log_probability in predictions.score)
    assert [path.name for path in tmp_path.iterdir()] == ["fold-0.safetensors"]


def scores_and_predictions(seed: int) -> tuple[Localization, Predictions]:
    """Return one class in six of eight images, with nine proposals each, and random predictions."""
    generator = torch.Generator().manual_seed(seed)
    corner = 40 * torch.rand(6, 9, 2, generator=generator)
    boxes = torch.cat([corner, corner + 5 + 20 * torch.rand(6, 9, 2, generator=generator)], dim=2)
    log_probability = torch.log_softmax(3 * torch.randn(6, 9, generator=generator), dim=1)
    scores = torch.randn(6, 9, generator=generator)
    tags: tuple[tuple[int, ...], ...] = ((0,), (), (0,), (0,), (), (0,), (0,), (0,))
    images = tuple(Image(i, f"{i}.jpg", (64, 64)) for i in range(8))
    dataset = Dataset(images, ("a",), tags)
    proposals = torch.zeros(8, 9, 4)
    proposals[torch.tensor(dataset.positives[0])] = boxes
    before = localization(dataset, proposals, (scores,), torch.zeros(8, dtype=torch.int64), agreement=0.5)
    return before, Predictions((log_probability,), (boxes,))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**30))
def test_the_weight_balances_scores_and_predictions(seed: int) -> None:
    before, predictions = scores_and_predictions(seed)
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
def test_the_networks_count_as_one_view_in_the_confidence(seed: int) -> None:
    """The previous views agree only if their box is still selected; the networks always agree."""
    before, predictions = scores_and_predictions(seed)
    found, boxes = decide(before, predictions, SETTINGS, PLAIN, Calibration())
    rows = torch.arange(6)
    previous = before.proposals[before.positives[0], before.state.selection[0]]
    same = torch.tensor([bool(iou(previous[r : r + 1].numpy(), boxes[0][r : r + 1].numpy())[0, 0] > 0.5) for r in rows])
    expected = torch.where(same, 2 / 3, 1 / 3).double()
    torch.testing.assert_close(found.agreement[0], expected)
    expected_confidence = confidence(Calibration(), plain_signals(expected, found.state.gaps[0]))
    np.testing.assert_allclose(found.boxes.score, expected_confidence.numpy().round(4))


def test_what_the_networks_add_explains_the_result_if_evidence_explained_it_before() -> None:
    before, predictions = scores_and_predictions(1)
    assert decide(before, predictions, SETTINGS, PLAIN, Calibration())[0].explanations == ()
    nothing = Explanation(("any",), torch.zeros(6, 1), torch.zeros(6, 1), torch.zeros(6, dtype=torch.int64))
    found, _ = decide(replace(before, explanations=(nothing,)), predictions, SETTINGS, PLAIN, Calibration())
    total = before.scores[0] + SETTINGS.weight * predictions.score[0]
    for row, image in enumerate(before.positives[0].tolist()):
        parts = found.explain(image, "a")
        assert set(parts) == {BEFORE, NETWORK}
        chosen = int(found.state.selection[0][row])
        assert parts[BEFORE][0] == pytest.approx(float(before.scores[0][row, chosen]))
        assert parts[NETWORK][0] == pytest.approx(SETTINGS.weight * float(predictions.score[0][row, chosen]))
        assert sum(part[0] for part in parts.values()) == pytest.approx(float(total[row].max()), abs=1e-5)
        assert sum(part[1] for part in parts.values()) <= float(total[row].max()) + 1e-5


def test_two_tags_with_one_box_share_their_confidence_if_evidence_was_learned() -> None:
    one, predicted = scores_and_predictions(2)
    tags = tuple((0, 1) if labels else () for labels in one.dataset.tags)
    dataset = Dataset(one.dataset.images, ("a", "b"), tags)
    before = localization(dataset, one.proposals, one.scores * 2, one.state.fold, agreement=0.5)
    predictions = Predictions(predicted.score * 2, predicted.boxes * 2)
    apart = decide(before, predictions, SETTINGS, PLAIN, Calibration())[0]
    nothing = Explanation(("any",), torch.zeros(6, 1), torch.zeros(6, 1), torch.zeros(6, dtype=torch.int64))
    together = decide(replace(before, explanations=(nothing, None)), predictions, SETTINGS, PLAIN, Calibration())[0]
    assert (apart.sharing, together.sharing) == (Sharing(), Sharing(6, 6))
    assert (together.boxes.score < apart.boxes.score).all()
    assert (together.boxes.score <= 0.5).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**30), st.floats(0.05, 0.9))
def test_instances_are_the_boxes_and_other_confident_boxes_without_overlap(seed: int, threshold: float) -> None:
    before, predictions = scores_and_predictions(seed)
    _, boxes = decide(before, predictions, SETTINGS, BoxSettings(voting_iou=0.5), Calibration())
    found = instances(before, predictions, boxes, threshold)
    for row, bag in enumerate(before.positives[0].tolist()):
        bag_boxes = found.boxes[found.image == bag]
        np.testing.assert_allclose(bag_boxes[0], boxes[0][row].numpy(), rtol=1e-6)
        apart = iou(bag_boxes, bag_boxes)
        assert (apart[~np.eye(len(bag_boxes), dtype=np.bool_)] <= 0.5 + 1e-6).all()
        likely = predictions.boxes[0][row][predictions.score[0][row].exp() >= threshold].double().numpy()
        if len(likely):
            assert iou(likely, bag_boxes).max(axis=1).min() >= 0.5 - 1e-6  # no confident box is lost
    assert found.score.min() >= threshold
