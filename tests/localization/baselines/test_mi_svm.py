"""MI-SVM is an independent baseline: pair scores and box voting do not affect it."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain, plain_transfer, planted_store, planted_target, planted_truth
from pairloc.boxes import iou
from pairloc.localization.baselines.mi_svm import fit_svm, train_svm
from pairloc.localization.engine import learn_source, localize_target
from pairloc.localization.methods import METHODS
from pairloc.settings import MiSvmSettings, RunSettings


def test_it_uses_neither_transfer_scores_nor_voting(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", bags=24)
    boxes = []
    for alpha, voting_iou, seed in ((0.0, 0.0, 0), (1.0, 0.0, 0), (1.0, 0.4, 0), (1.0, 0.4, 7)):
        transfer = plain_transfer(steps=5).model_copy(update={"seed": seed})  # other transfer scores
        run = RunSettings.model_validate(
            {
                "data": {"scenes": {}},
                "localization": {"energy": {"alpha": alpha}, "boxes": {"voting_iou": voting_iou}},
                "mi_svm": {"rounds": 2, "folds": 2, "features": plain("class")},
            }
        )
        settings = METHODS["mi-svm"].section(run)
        assert isinstance(settings, MiSvmSettings)
        learned = learn_source(store, planted_truth(store, shown), transfer)
        boxes.append(localize_target(store, store.dataset, learned, settings, method="mi-svm").boxes)
    for other in boxes[1:]:
        assert np.array_equal(boxes[0].boxes, other.boxes)
        assert np.array_equal(boxes[0].score, other.score)
    corners = {tuple(box) for index in range(len(store)) for box in store.bag(index).boxes.astype(np.float64).tolist()}
    assert all(tuple(box) in corners for box in boxes[0].boxes.tolist())


@pytest.mark.parametrize("method", ["warm-up-unary", "warm-up", "unary", "full"])
def test_the_other_methods_use_the_localization_settings(method: str) -> None:
    run = RunSettings.model_validate({"data": {"scenes": {}}, "localization": {"rounds": 7}})
    assert METHODS[method].section(run) is run.localization


def test_hard_negatives_join_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every fit, the highest-scored proposal of every bag without the tag becomes a negative example."""
    target, shown = planted_target(tmp_path / "s", classes=2, bags=12, proposals=20)
    fits: list[tuple[torch.Tensor, torch.Tensor]] = []

    def recording(positive: torch.Tensor, negative: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight, bias = fit_svm(positive, negative)
        fits.append((negative, weight))
        return weight, bias

    monkeypatch.setattr("pairloc.localization.baselines.mi_svm.fit_svm", recording)
    bags = target.positives[0]
    train_svm(target, 0, bags, torch.from_numpy(shown)[bags], seed=0)
    lacking = [bag for bag in range(12) if bag not in bags.tolist()]
    features = target.class_bags.features(torch.tensor(lacking))
    assert [len(negative) for negative, _ in fits] == [8 * 6, 8 * 6 + 6, 8 * 6 + 12]
    for (_, weight), (negative, _) in itertools.pairwise(fits):
        hardest = [max(proposals, key=lambda proposal: float(proposal @ weight)) for proposals in features]
        mined = {tuple(row) for row in negative[-6:].tolist()}
        assert mined == {tuple(row) for row in torch.stack(hardest).tolist()}


def test_an_svm_separates_separable_data() -> None:
    generator = torch.Generator().manual_seed(0)
    positive, negative = torch.randn(30, 4, generator=generator), torch.randn(300, 4, generator=generator)
    positive[:, 0] += 6
    weight, bias = fit_svm(positive, negative)
    assert ((positive @ weight + bias) > 0).double().mean() > 0.95
    assert ((negative @ weight + bias) < 0).double().mean() > 0.95


@pytest.mark.parametrize("seed", range(3))
def test_the_svm_is_the_optimum_of_its_objective(seed: int) -> None:
    """The gradient of the regularised squared hinge loss, written out, is zero."""
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(12, 5, generator=generator, dtype=torch.float64) + 0.5
    negative = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    weight, bias = (values.clone().requires_grad_() for values in fit_svm(positive, negative))
    losses = [
        (1 - sign * (x @ weight + bias)).clamp(min=0).pow(2).mean() for sign, x in ((1, positive), (-1, negative))
    ]
    (0.005 * weight.pow(2).sum() + 0.5 * losses[0] + 0.5 * losses[1]).backward()
    assert weight.grad is not None
    assert bias.grad is not None
    assert float(weight.grad.abs().max()) < 1e-6
    assert float(bias.grad.abs()) < 1e-6


def test_it_starts_from_the_proposal_nearest_to_the_whole_image(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", bags=12)
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=5))
    settings = MiSvmSettings(rounds=0, features=plain("class"))
    found = localize_target(store, store.dataset, learned, settings, method="mi-svm").boxes
    for bag, box in zip(found.image.tolist(), found.boxes, strict=True):
        proposals = store.bag(bag).boxes.astype(np.float64)
        width, height = store.bag(bag).size
        corner = [width, height] if width else proposals[:, 2:].max(axis=0).tolist()
        overlap = iou(np.array([[0.0, 0.0, *corner]]), proposals)[0]
        assert overlap.max() == pytest.approx(float(iou(np.array([[0.0, 0.0, *corner]]), box[None])[0, 0]), rel=1e-5)
