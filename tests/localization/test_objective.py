"""The objective against a slow reading of the paper: the loss of every proposal and of every pair of proposals."""

from itertools import permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers import plain_settings, planted_scores, planted_target
from pairloc.localization.class_view import ClassView
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.losses import cross_entropy
from pairloc.localization.objective import Objective
from pairloc.localization.target import Target
from pairloc.settings import EnergySettings


@torch.no_grad()
def slow_loss(
    target: Target,
    transfer: TransferScores,
    class_scores: ClassScores | None,
    label: int,
    selection: Tensor | None,
    energy: EnergySettings,
) -> float:
    """L_c of the paper (eq. loss), one proposal and one ordered pair of proposals after the other."""
    lambda1, lambda2 = (energy.lambda1, energy.lambda2) if class_scores is not None else (1.0, 1.0)
    everything = torch.arange(target.bags.count)
    features, class_features = target.bags.features(everything), target.class_bags.features(everything)
    chosen = {} if selection is None else dict(zip(target.positives[label].tolist(), selection.tolist(), strict=True))
    proposals = [(int(bag), int(e)) for bag, e in torch.nonzero(target.bags.valid)]
    total = 0.0
    for bag, e in proposals:
        score = lambda2 * transfer.unary.of_class(features[bag][None])[0, e]
        if class_scores is not None:
            score = score + (1 - lambda2) * class_scores.unary.of_class(class_features[bag][None], label)[0, e]
        total += float(cross_entropy(score, torch.tensor(float(chosen.get(bag) == e))))
    for (bag, e), (other, f) in permutations(proposals, 2):
        if bag == other:
            continue
        score = lambda1 * transfer.relation(features[bag, e][None, None], features[other, f][None, None])[0, 0, 0, 0]
        if class_scores is not None:
            pair = (class_features[bag, e][None, None], class_features[other, f][None, None])
            score = score + (1 - lambda1) * class_scores.relation.of_classes(*pair, torch.tensor([label]))[0, 0, 0]
        related = float(chosen.get(bag) == e and chosen.get(other) == f)
        total += energy.alpha * float(cross_entropy(score, torch.tensor(related)))
    return total


@pytest.mark.parametrize("trained", [False, True])
def test_objective_is_the_loss_of_all_proposals_and_pairs(tmp_path: Path, trained: bool) -> None:
    """L(psi, z) = L(psi, 0) + E(z | psi), with pairs of negative bags and of a positive and a negative one in L^P."""
    target, shown = planted_target(tmp_path / "s", classes=2, bags=6, proposals=3, d=8)
    transfer = planted_scores(target, shown)
    settings = plain_settings(energy={"alpha": 0.3, "alpha_scale": "none", "lambda1": 0.4, "lambda2": 0.7})
    torch.manual_seed(1)
    class_scores = ClassScores(target.class_bags.d, 2, settings).eval() if trained else None
    objective = Objective(target, settings.energy, seed=0)
    for label, bags in enumerate(target.positives):
        selection = torch.randint(3, (len(bags),), generator=torch.Generator().manual_seed(label))
        background = objective.without_selection(label, transfer, class_scores)
        problem = ClassView(target, transfer, label, settings).problem(class_scores)
        expected = slow_loss(target, transfer, class_scores, label, None, settings.energy)
        assert background == pytest.approx(expected, rel=1e-4)
        expected = slow_loss(target, transfer, class_scores, label, selection, settings.energy)
        assert background + problem.energy(selection) == pytest.approx(expected, rel=1e-4)


def test_sampled_objective_is_near_the_exact_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, shown = planted_target(tmp_path / "s", classes=2, bags=12, proposals=6, d=8)
    transfer = planted_scores(target, shown)
    energy = plain_settings(energy={"alpha": 0.3, "alpha_scale": "none"}).energy
    exact = slow_loss(target, transfer, None, 0, None, energy)
    monkeypatch.setattr("pairloc.localization.objective._PAIRS", 1000)
    sampled = [Objective(target, energy, seed).without_selection(0, transfer, None) for seed in range(8)]
    assert sum(sampled) / len(sampled) == pytest.approx(exact, rel=0.03)
    assert max(sampled) - min(sampled) > 0  # it is a sample
