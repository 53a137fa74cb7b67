"""Fine-tuning: a network judges only what it never saw, and both opinions count by their weight."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import TINY
from pairloc.detector.reading import load_picture
from pairloc.detector.propose import Seen, judge, propose
from pairloc.detector.model import Proposer, build
from pairloc.boxes import iou
from pairloc.settings import FineTuneSettings, SceneSettings
from pairloc.datasets.dataset import Dataset
from pairloc.formats.reading import read_annotated
from pairloc.curation.scenes import write_scenes
from pairloc.datasets.scored import ScoredBoxes
from pairloc.runs.fine_tuning import Opinion, decide, fine_tune, instances, read_opinion
from pairloc.bags.tensors import Bags
from pairloc.localization.target import Target
from pairloc.sharing import Share

SETTINGS = FineTuneSettings(steps=2, batch=8, warm_up=1)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Target, ScoredBoxes, torch.Tensor, Proposer]:
    """Pictures with one box of every class that is in them, their bags, folds, and an untaught proposer."""
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, SceneSettings(size=64, source_images=14, target_images=2))
    dataset, truth = read_annotated(folder / "source.json")
    seen = {(int(i), int(c)): row for row, (i, c) in enumerate(zip(truth.image, truth.label, strict=True))}
    rows = [seen[key] for key in sorted(seen)]
    boxes = ScoredBoxes(truth.image[rows], truth.label[rows], truth.boxes[rows], np.ones(len(rows)))
    torch.manual_seed(0)
    proposer = Proposer(build(TINY, 5, pretrained=False), TINY, tuple("abcde"))
    pictures = [load_picture(dataset.path(index)).float() / 255 for index in range(len(dataset))]
    proposals = propose(proposer.model, pictures, 7, 0.7)
    table, valid = torch.zeros(len(dataset), 7, 4), torch.zeros(len(dataset), 7, dtype=torch.bool)
    for row, own in enumerate(proposals):
        own = own[: 7 - row % 3]  # bags of several sizes
        table[row, : len(own)], valid[row, : len(own)] = own, True
    bags = Bags.of_tensors(torch.zeros(len(dataset), 7, 2), table, valid, torch.zeros(len(dataset), 7))
    return dataset, Target.of(bags, bags, dataset), boxes, torch.arange(len(dataset)) % 3, proposer


def test_nothing_is_moved_by_a_network_that_moves_nothing(scene: tuple[Dataset, Target, ScoredBoxes]) -> None:
    dataset, target = scene[:2]
    network = build(TINY, 4, pretrained=False).eval()
    torch.nn.init.zeros_(network.roi_heads.box_predictor.bbox_pred.weight)
    torch.nn.init.zeros_(network.roi_heads.box_predictor.bbox_pred.bias)
    proposals = [target.transfer.boxes[i][target.transfer.valid[i]] for i in (0, 1)]
    said, moved = judge(Seen(network, [load_picture(dataset.path(i)).float() / 255 for i in (0, 1)]), proposals)
    torch.testing.assert_close(said.exp().sum(dim=1), torch.ones(len(said)))
    for label in range(5):
        torch.testing.assert_close(moved[:, label], torch.cat(proposals), atol=1e-3, rtol=1e-4)


def test_moved_boxes_stay_in_the_picture_and_are_not_empty(scene: tuple[Dataset, Target, ScoredBoxes]) -> None:
    dataset, target = scene[:2]
    network = build(TINY, 4, pretrained=False).eval()
    torch.nn.init.normal_(network.roi_heads.box_predictor.bbox_pred.bias, std=30)
    picture = load_picture(dataset.path(0)).float() / 255
    _, moved = judge(Seen(network, [picture]), [target.transfer.boxes[0][target.transfer.valid[0]]])
    assert moved.min() >= 0
    assert moved.max() <= 64
    assert (moved[..., 2:] - moved[..., :2]).min() >= 1


def test_what_a_fold_is_told_does_not_depend_on_its_own_boxes(
    scene: tuple[Dataset, Target, ScoredBoxes, torch.Tensor, Proposer], tmp_path: Path
) -> None:
    dataset, target, boxes, fold, start = scene
    other = ScoredBoxes(boxes.image, boxes.label, boxes.boxes.copy(), boxes.score)
    own = fold.numpy()[boxes.image] == 1
    other.boxes[own] = [1.0, 2.0, 30.0, 40.0]
    for name, given_boxes in (("one", boxes), ("other", other)):
        (tmp_path / name).mkdir()
        fine_tune(dataset, target, given_boxes, fold, start, SETTINGS, tmp_path / name)
    files = [(tmp_path / name / f"fold-{f}.safetensors").read_bytes() for name in ("one", "other") for f in range(3)]
    assert files[1] == files[4]
    assert files[0] != files[3]
    assert files[2] != files[5]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [f"fold-{f}.safetensors" for f in range(3)]


def test_two_processes_tell_what_one_tells_and_what_is_told_is_not_asked_again(
    scene: tuple[Dataset, Target, ScoredBoxes, torch.Tensor, Proposer], tmp_path: Path
) -> None:
    dataset, target, boxes, fold, start = scene
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    fine_tune(dataset, target, boxes, fold, start, SETTINGS, tmp_path / "one")
    lines: list[str] = []
    for rank in (0, 1, 0, 1):
        fine_tune(
            dataset, target, boxes, fold, start, SETTINGS, tmp_path / "two", share=Share(rank, 2), say=lines.append
        )
    assert len(lines) == 3
    for number in range(3):
        name = f"fold-{number}.safetensors"
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    opinion = read_opinion(target, tmp_path / "one", 3)
    for bags, said, moved in zip(target.positives, opinion.score, opinion.boxes, strict=True):
        assert torch.equal(torch.isfinite(said), target.transfer.valid[bags])
        assert moved.shape == (*said.shape, 4)


def test_without_folds_one_network_sees_all(
    scene: tuple[Dataset, Target, ScoredBoxes, torch.Tensor, Proposer], tmp_path: Path
) -> None:
    dataset, target, boxes, fold, start = scene
    fine_tune(dataset, target, boxes, torch.zeros_like(fold), start, SETTINGS, tmp_path)
    opinion = read_opinion(target, tmp_path, 1)
    assert all(torch.isfinite(said).any(dim=1).all() for said in opinion.score)


def opinions(seed: int) -> tuple[torch.Tensor, Opinion]:
    generator = torch.Generator().manual_seed(seed)
    corner = 40 * torch.rand(6, 9, 2, generator=generator)
    boxes = torch.cat([corner, corner + 5 + 20 * torch.rand(6, 9, 2, generator=generator)], dim=2)
    said = torch.log_softmax(3 * torch.randn(6, 9, generator=generator), dim=1)
    return torch.randn(6, 9, generator=generator), Opinion((said,), (boxes,))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**30))
def test_the_weight_decides_whose_choice_it_is(seed: int) -> None:
    scores, opinion = opinions(seed)
    for weight, choice in ((1e-9, scores), (1e9, opinion.score[0])):
        selection, gaps, boxes = decide((scores,), opinion, FineTuneSettings(weight=weight), 0.0)
        assert torch.equal(selection[0], choice.argmax(dim=1))
        assert torch.equal(boxes[0], opinion.boxes[0][torch.arange(6), selection[0]])
        assert (gaps[0] >= 0).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**30), st.floats(0.05, 0.9))
def test_instances_are_the_boxes_and_all_others_that_are_sure_and_apart(seed: int, sure: float) -> None:
    scores, opinion = opinions(seed)
    tagged = torch.tensor([0, 2, 3, 5, 6, 7])
    bags = Bags.of_tensors(torch.zeros(8, 9, 1), torch.zeros(8, 9, 4), torch.ones(8, 9).bool(), torch.zeros(8, 9))
    target = Target(bags, bags, ("a",), (tagged,), torch.ones(8, 1).bool())
    _, _, boxes = decide((scores,), opinion, SETTINGS, 0.5)
    found = instances(target, opinion, boxes, sure)
    for place, bag in enumerate(tagged.tolist()):
        own = found.boxes[found.image == bag]
        np.testing.assert_allclose(own[0], boxes[0][place].numpy(), rtol=1e-6)
        apart = iou(own, own)
        assert (apart[~np.eye(len(own), dtype=np.bool_)] <= 0.5 + 1e-6).all()
        likely = opinion.boxes[0][place][opinion.score[0][place].exp() >= sure].double().numpy()
        if len(likely):
            assert iou(likely, own).max(axis=1).min() >= 0.5 - 1e-6  # none that is sure is lost
    assert found.score.min() >= sure
