"""Exact unary scores: they minimise the expected loss of sampled training."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain_settings, planted_target
from pairloc.boxes import iou
from pairloc.localization import logistic
from pairloc.localization.logistic import fit_logistic
from pairloc.localization.retrain import retrain


@pytest.mark.parametrize("batch", [16, 1024])
def test_the_optimum_equals_that_of_newtons_method(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    monkeypatch.setitem(logistic._BATCH, "cpu", batch)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(70, 4, 3, generator=generator, dtype=torch.float64)
    y, w = torch.rand(70, 4, 2, generator=generator, dtype=torch.float64), torch.rand(70, 4, 2, dtype=torch.float64)
    start = torch.zeros(2, 4, dtype=torch.float64)
    found = fit_logistic(lambda b: x[b], lambda b: (y[b], w[b]), torch.arange(70), start, decay=0.1, iterations=200)
    flat = torch.cat([x.reshape(-1, 3), torch.ones(280, 1, dtype=torch.float64)], dim=1)
    keep = torch.tensor([1.0, 1, 1, 0], dtype=torch.float64)
    for c in range(2):
        weights = torch.zeros(4, dtype=torch.float64)
        for _ in range(30):  # Newton
            p, weight = torch.sigmoid(flat @ weights), w[..., c].reshape(-1)
            gradient = flat.T @ (weight * (p - y[..., c].reshape(-1))) + 0.1 * keep * weights
            hessian = (flat * (weight * p * (1 - p))[:, None]).T @ flat + 0.1 * torch.diag(keep)
            weights = weights - torch.linalg.solve(hessian, gradient)
        torch.testing.assert_close(found[c], weights, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("other_tag_weight", "trust"), [(0.0, 0.0), (1.5, 0.0), (1.5, 2.0)])
def test_exact_class_scores_have_the_lowest_expected_loss(
    tmp_path: Path, other_tag_weight: float, trust: float
) -> None:
    """The expected loss of sampled pairs, computed bag by bag, is higher around the exact scores.

    A bag counts as much as its selected box is probable, to the power of the setting.
    """
    target, shown = planted_target(tmp_path / "s", classes=3, bags=24)
    selection = tuple(torch.from_numpy(shown)[bags] for bags in target.positives)
    settings = plain_settings(
        energy={"alpha": 0.0},
        unary={"fit": "exact", "decay": 1e-2, "other_tag_weight": other_tag_weight, "trust": trust},
    )
    probability = tuple(torch.linspace(0.2, 1, len(bags)) for bags in target.positives)
    scores, curve = retrain(target, selection, settings, settings.energy, trust=probability)
    assert curve == []

    def loss(weight: torch.Tensor, bias: torch.Tensor, label: int) -> float:
        total = settings.unary.decay / 2 * float(weight.pow(2).sum())
        positives = target.positives[label].tolist()
        power = probability[label] ** trust
        counts = dict(zip(positives, (power / power.sum()).tolist(), strict=True))
        others = [b for b in range(target.class_bags.count) if b not in positives]
        for b in range(target.class_bags.count):
            x = target.class_bags.features(torch.tensor([b]))[0]
            s = x @ weight + bias
            chosen = target.class_bags.boxes[b, shown[b]]
            fg = iou(chosen[None, None], target.class_bags.boxes[b][None])[0, 0] >= settings.training.foreground_iou
            if b in positives:
                total += float(0.3 * torch.nn.functional.softplus(-s[fg]).mean()) * counts[b]
                total += float(0.7 * torch.nn.functional.softplus(s[~fg]).mean()) * counts[b]
            else:
                total += float(torch.nn.functional.softplus(s).mean()) / 3 / len(others)
                total += other_tag_weight * float(torch.nn.functional.softplus(s[fg]).mean()) / len(others)
        return total

    random = torch.Generator().manual_seed(0)
    for label in range(3):
        weight, bias = scores.unary.linear.weight[label].detach(), scores.unary.linear.bias[label].detach()
        minimum = loss(weight, bias, label)
        for _ in range(8):
            step = 0.05 * torch.randn(weight.shape, generator=random)
            assert loss(weight + step, bias + 0.05 * torch.randn((), generator=random), label) > minimum - 1e-5


def test_exact_unary_scores_find_planted_objects(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", classes=3, bags=60)
    selection = tuple(torch.from_numpy(shown)[bags] for bags in target.positives)
    settings = plain_settings(energy={"alpha": 0.0}, unary={"fit": "exact"})
    held_out = torch.arange(60) < 30
    scores, _ = retrain(target, selection, settings, settings.energy, allowed=~held_out)
    for label, bags in enumerate(target.positives):
        held_out_bags = bags[held_out[bags]]
        found = scores.unary.of_class(target.class_bags.features(held_out_bags), label).argmax(dim=1)
        assert np.mean(found.numpy() == shown[held_out_bags.numpy()]) > 0.8
