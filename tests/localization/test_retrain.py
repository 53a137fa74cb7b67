"""Re-training: which bags and pairs it uses, and classes without training data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain_settings, planted_target, slow_cross_entropy
from pairloc.boxes import iou
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.losses import cross_entropy
from pairloc.localization.retrain import Positives, pair_loss, retrain
from pairloc.localization.sampling import PairDrawer
from pairloc.localization.target import Selection, Target, fold_of_bags

Planted = tuple[Target, np.ndarray, TransferScores]
SETTINGS = plain_settings()


def true_selection(target: Target, shown: np.ndarray) -> Selection:
    return tuple(torch.from_numpy(shown)[bags] for bags in target.positives)


def test_held_out_bags_do_not_affect_training(planted: Planted) -> None:
    """Changing the held-out bags leaves the scores identical to the last bit."""
    target, shown, _ = planted
    selection = true_selection(target, shown)
    fold = fold_of_bags(target, 3, 0)
    allowed = fold != 1
    for settings in (SETTINGS, plain_settings(unary={"fit": "exact", "other_tag_weight": 1.0})):
        scores, _ = retrain(target, selection, settings, settings.energy, allowed=allowed, seed=5)
        assert target.class_bags._cached is not None
        kept = target.class_bags._cached.clone()
        try:
            target.class_bags._cached[~allowed] = 1e6
            other = tuple(
                torch.where(fold[bags] == 1, 0, chosen)
                for bags, chosen in zip(target.positives, selection, strict=True)
            )
            again, _ = retrain(target, other, settings, settings.energy, allowed=allowed, seed=5)
        finally:
            target.class_bags._cached[:] = kept
        for name, tensor in scores.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_class_without_training_data_has_zero_class_scores(planted: Planted) -> None:
    target, shown, _ = planted
    one = replace(target, positives=(target.positives[0][:1], target.positives[1][:0], target.positives[2]))
    selection = true_selection(one, shown)
    settings = plain_settings(training={"held_out": 0.0})
    scores, _ = retrain(one, selection, settings, settings.energy)
    assert scores.unary.linear.weight[1].abs().sum() == scores.unary.linear.bias[1] == 0
    assert (scores.relation.score.weight[:2] == 0).all()
    assert scores.unary.linear.weight[0].abs().sum() > 0
    empty = replace(one, positives=tuple(bags[:0] for bags in one.positives))
    nothing, _ = retrain(empty, tuple(chosen[:0] for chosen in selection), SETTINGS, SETTINGS.energy)
    assert (nothing.unary.linear.weight == 0).all()


def test_the_exact_fit_uses_bags_held_out_for_early_stopping(tmp_path: Path) -> None:
    """A class whose only bag is held out for early stopping still gets exact scores."""
    target, shown = planted_target(tmp_path / "s", classes=12, bags=12, proposals=4, d=16)
    selection = true_selection(target, shown)
    settings = plain_settings(unary={"fit": "exact"}, energy={"alpha": 0.0})
    for seed in range(60):
        scores, _ = retrain(target, selection, settings, settings.energy, seed=seed)
        assert (scores.unary.linear.weight.abs().sum(dim=1) > 0).all(), seed


def test_what_every_tag_selects_is_unlearned(tmp_path: Path) -> None:
    """Nine tenths of the bags select a distractor that all classes share; as another tag's box it speaks against each.

    Without `other_tag_weight` re-training learns the distractor.
    """
    target, shown = planted_target(tmp_path / "s", bags=60, proposals=40, d=16, noise=0.1)
    distractor = (shown + 1) % target.bags.size
    cached = target.class_bags._cached
    assert cached is not None
    cached[torch.arange(len(shown)), torch.from_numpy(distractor)] = 0.75
    wrong = np.arange(len(shown)) // len(target.classes) % 10 > 0
    selection = true_selection(target, np.where(wrong, distractor, shown))
    right = {}
    for weight in (0.0, 10.0):
        settings = plain_settings(energy={"alpha": 0.0}, unary={"fit": "exact", "other_tag_weight": weight})
        scores, _ = retrain(target, selection, settings, settings.energy)
        best = [
            scores.unary.of_class(target.class_bags.features(bags), label).argmax(dim=1)
            for label, bags in enumerate(target.positives)
        ]
        truth = true_selection(target, shown)
        right[weight] = float((torch.cat(best) == torch.cat(truth)).float().mean())
    assert right[0.0] < 0.3 < 0.9 < right[10.0], right


def test_scores_without_weight_are_not_trained(planted: Planted) -> None:
    """Only gradient descent has a training curve, so it is empty if nothing is trained by it."""
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


def test_a_class_without_possible_pairs_is_skipped(tmp_path: Path) -> None:
    """No other bag shows the class and none lacks it, so no pair is drawn for it; training continues."""
    target, shown = planted_target(tmp_path / "s", classes=2, bags=8)
    one = replace(
        target, positives=(target.positives[0][:1], target.positives[1]), tagged=torch.ones_like(target.tagged)
    )
    settings = plain_settings(training={"held_out": 0.0, "steps": 5})
    scores, curve = retrain(one, true_selection(one, shown), settings, settings.energy)
    assert len(curve) > 0
    assert all(torch.isfinite(tensor).all() for tensor in scores.state_dict().values())


@torch.no_grad()
def test_sampled_loss_is_the_exact_loss_on_average(tmp_path: Path) -> None:
    """Foreground weighs foreground / (foreground + background) in both, however many proposals of a bag are foreground.

    The slow reading: the mean over positive bags, plus the mean over negative bags with the weight of their draws.
    """
    target, shown = planted_target(tmp_path / "s", classes=2, bags=24, proposals=14, d=8)
    settings = plain_settings(energy={"alpha": 0.0}, training={"held_out": 0.0, "negatives": 0.4})
    training, bags = settings.training, target.class_bags
    torch.manual_seed(0)
    scores = ClassScores(bags.d, 2, settings)
    scores.unary.linear.weight.normal_()
    everyone = torch.ones(bags.count, dtype=torch.bool)
    positives = Positives.of(target, true_selection(target, shown), everyone)
    expected = 0.0
    for entry in range(len(positives)):
        bag, label = int(positives.entries.bag[entry]), int(positives.entries.label[entry])
        unary = scores.unary.of_class(bags.features(torch.tensor([bag])), label)[0]
        foreground = iou(positives.box[entry][None], bags.boxes[bag])[0] >= training.foreground_iou
        losses = cross_entropy(unary, foreground.float())
        expected += float(0.3 * losses[foreground].mean() + 0.7 * losses[~foreground].mean()) / len(positives)
    for label in range(2):
        for bag in torch.nonzero(~target.tagged[:, label])[:, 0].tolist():
            unary = scores.unary.of_class(bags.features(torch.tensor([bag])), label)[0]
            weight = training.negatives / (2 - training.negatives) / float((~target.tagged[:, label]).sum()) / 2
            expected += weight * float(cross_entropy(unary, torch.zeros_like(unary)).mean())
    drawer = PairDrawer(positives.entries, torch.arange(bags.count), target.tagged, 1 - training.negatives, 0)
    drawn = [float(pair_loss(scores, bags, positives, drawer, 400, settings, settings.energy)) for _ in range(40)]
    average = sum(drawn) / len(drawn) * 2 / (2 - training.negatives)  # a pair has two bags
    assert average == pytest.approx(expected, rel=0.02)


@torch.no_grad()
def test_sampled_pair_loss_is_the_exact_pair_loss_on_average(tmp_path: Path) -> None:
    """L^P of the paper with both kinds of pairs, one pair of proposals after the other.

    Two proposals are related if both show the class, so never in a pair with a bag that lacks it. Of a positive bag 3
    foreground and 7 background proposals are drawn, of another one any 10.
    """
    target, shown = planted_target(tmp_path / "s", classes=2, bags=10, proposals=14, d=8)
    settings = plain_settings(energy={"alpha": 0.5, "lambda2": 1.0}, training={"held_out": 0.0, "negatives": 0.4})
    training, bags = settings.training, target.class_bags
    torch.manual_seed(0)
    scores = ClassScores(bags.d, 2, settings)
    scores.relation.score.weight.normal_(std=2.0)
    scores.relation.score.bias.copy_(torch.tensor([-2.0, 2.0]))
    places = torch.tensor([[i, i, i + 20, i + 20] for i in (0.0, 20.0, 40.0, 60.0)])  # so that boxes overlap
    for boxes in (target.bags.boxes, bags.boxes):
        boxes.copy_(places[(torch.arange(14) + torch.arange(bags.count)[:, None]) % 4])
    positives = Positives.of(target, true_selection(target, shown), torch.ones(bags.count, dtype=torch.bool))
    features = bags.features(torch.arange(bags.count))
    expected = 0.0
    for label, class_bags in enumerate(positive.tolist() for positive in target.positives):
        lacking = [bag for bag in range(bags.count) if label not in target.bags.store.dataset.tags[bag]]
        shows, drawn = {}, {}
        for bag in range(bags.count):
            overlap = iou(bags.boxes[bag, shown[bag]][None], bags.boxes[bag])[0]
            shows[bag] = [bag in class_bags and value >= training.foreground_iou for value in overlap.tolist()]
            count = sum(shows[bag])
            foreground, background = 0.3 / max(count, 1), (0.7 if count else 1.0) / (14 - count)
            drawn[bag] = [foreground if show else background for show in shows[bag]]
        for first in class_bags:
            mates = [bag for bag in class_bags if bag != first]
            partners = [(bag, (1 - training.negatives) / len(mates)) for bag in mates]
            partners += [(bag, training.negatives / len(lacking)) for bag in lacking]
            for second, often in partners:
                table = scores.relation(features[first][None], features[second][None])[0, :, :, label].tolist()
                for e, f in np.ndindex(14, 14):
                    loss = slow_cross_entropy(table[e][f], shows[first][e] and shows[second][f])
                    expected += often * drawn[first][e] * drawn[second][f] * loss / len(positives)
    drawer = PairDrawer(positives.entries, torch.arange(bags.count), target.tagged, 1 - training.negatives, 0)
    sampled = [float(pair_loss(scores, bags, positives, drawer, 400, settings, settings.energy)) for _ in range(40)]
    assert sum(sampled) / len(sampled) == pytest.approx(expected, rel=0.01)
