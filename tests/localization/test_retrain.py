"""Re-training: from which bags, from which pairs, and what a class without any says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from helpers import plain_settings, planted_target
from pairloc.localization.functions import TransferScores
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Selection, Target, fold_of_bags

Planted = tuple[Target, np.ndarray, TransferScores]
SETTINGS = plain_settings()


def true_selection(target: Target, shown: np.ndarray) -> Selection:
    return tuple(torch.from_numpy(shown)[bags] for bags in target.positives)


def test_multi_folding_never_trains_on_a_bag_it_then_relocalizes(planted: Planted) -> None:
    """Whatever the held-out bags show, the scores learned without them are the same to the last bit."""
    target, shown, _ = planted
    selection = true_selection(target, shown)
    fold = fold_of_bags(target, 3, 0)
    allowed = fold != 1
    for settings in (SETTINGS, plain_settings(unary={"fit": "exact", "other_tag_weight": 1.0})):
        scores, _ = retrain(target, selection, settings, settings.energy, allowed=allowed, seed=5)
        assert target.class_bags._held is not None
        kept = target.class_bags._held.clone()
        try:
            target.class_bags._held[~allowed] = 1e6
            other = tuple(
                torch.where(fold[bags] == 1, 0, own) for bags, own in zip(target.positives, selection, strict=True)
            )
            again, _ = retrain(target, other, settings, settings.energy, allowed=allowed, seed=5)
        finally:
            target.class_bags._held[:] = kept
        for name, tensor in scores.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_class_that_was_not_learned_has_no_class_scores(planted: Planted) -> None:
    target, shown, _ = planted
    one = replace(target, positives=(target.positives[0][:1], target.positives[1][:0], target.positives[2]))
    selection = true_selection(one, shown)
    settings = plain_settings(training={"held_out": 0.0})
    scores, _ = retrain(one, selection, settings, settings.energy)
    assert scores.unary.linear.weight[1].abs().sum() == scores.unary.linear.bias[1] == 0
    assert (scores.relation.score.weight[:2] == 0).all()
    assert scores.unary.linear.weight[0].abs().sum() > 0
    nobody = replace(one, positives=tuple(bags[:0] for bags in one.positives))
    nothing, _ = retrain(nobody, tuple(own[:0] for own in selection), SETTINGS, SETTINGS.energy)
    assert (nothing.unary.linear.weight == 0).all()


def test_a_class_of_one_bag_keeps_its_exact_scores_whoever_is_held_out(tmp_path: Path) -> None:
    """The exact fit learns from held-out bags too: it has something to say of a class all of whose bags they are."""
    target, shown = planted_target(tmp_path / "s", classes=12, bags=12, proposals=4, d=16)
    selection = true_selection(target, shown)
    settings = plain_settings(unary={"fit": "exact"}, energy={"alpha": 0.0})
    for seed in range(60):
        scores, _ = retrain(target, selection, settings, settings.energy, seed=seed)
        assert (scores.unary.linear.weight.abs().sum(dim=1) > 0).all(), seed


def test_scores_without_weight_are_not_trained(planted: Planted) -> None:
    """The curve is that of descent, so there is none where the pair scores have no weight and the unary is exact."""
    target, shown, _ = planted
    selection = true_selection(target, shown)
    for energy, fit, descends in (
        ({"lambda1": 1.0}, "exact", False),
        ({"alpha": 0.0}, "exact", False),
        ({"lambda1": 0.5}, "exact", True),
        ({"lambda1": 1.0, "lambda2": 1.0}, "sampled", False),
        ({"alpha": 0.0}, "sampled", True),
    ):
        settings = plain_settings(energy=energy, unary={"fit": fit})
        _, curve = retrain(target, selection, settings, settings.energy)
        assert bool(curve) == descends, (energy, fit)


def test_a_class_of_one_bag_that_every_bag_has_is_not_trained(tmp_path: Path) -> None:
    """It has no partner and there is no bag that lacks it: nothing is drawn for it, and training goes on."""
    target, shown = planted_target(tmp_path / "s", classes=2, bags=8)
    one = replace(
        target, positives=(target.positives[0][:1], target.positives[1]), tagged=torch.ones_like(target.tagged)
    )
    settings = plain_settings(training={"held_out": 0.0, "steps": 5})
    scores, curve = retrain(one, true_selection(one, shown), settings, settings.energy)
    assert len(curve) > 0
    assert all(torch.isfinite(tensor).all() for tensor in scores.state_dict().values())
