"""The theorems of the alternating loop, on planted bags."""

import copy
import itertools
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import planted_target
from pairloc.bags.tensors import Bags
from pairloc.localization.alternate import Alternation
from pairloc.localization.functions import TransferScores
from pairloc.localization.methods import METHODS, load_state, run_method, save_state, settings_of
from pairloc.localization.problems import energy, groups, mixed_scores, relocalize_held
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Target, fold_of_bags
from pairloc.localization.transfer import Labels, learn_transfer
from pairloc.settings import LearningSettings, TransferSettings

FAST = LearningSettings(steps=40, pairs=8, lr=0.01, rounds=2, folds=3, k=4, alpha=1.0)


def learned(target: Target, shown: np.ndarray, steps: int = 60, **changes: object) -> TransferScores:
    """Transfer scores of the planted labels."""
    settings = TransferSettings.model_validate({"steps": steps, "pairs": 8, "lr": 0.01} | changes)
    labels = torch.full((target.transfer.count, target.transfer.size), -1)
    labels[torch.arange(len(shown)), torch.from_numpy(shown)] = torch.arange(len(shown)) % len(target.classes)
    return learn_transfer(target.transfer, Labels.of(labels), settings)[0]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, np.ndarray, TransferScores]:
    target, shown = planted_target(tmp_path_factory.mktemp("s") / "store", bags=45, noise=0.6)
    return target, shown, learned(target, shown)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("alpha_scale", ["none", "per_bag"])
def test_the_objective_never_rises(
    planted: tuple[Target, np.ndarray, TransferScores], seed: int, alpha_scale: str
) -> None:
    target, _, transfer = planted
    settings = LearningSettings.model_validate(
        FAST.model_dump() | {"folds": 1, "safeguard": True, "rounds": 4, "seed": seed, "alpha_scale": alpha_scale}
    )
    state = Alternation(target, transfer, settings).run()
    measured = [step.objective for step in state.history]
    assert len(measured) >= 3
    for before, after in itertools.pairwise(measured):
        assert before is not None
        assert after is not None
        assert after <= before + 1e-6 * abs(before)


@pytest.mark.parametrize("own", [True, False])
def test_the_objective_never_rises_with_cosines(planted: tuple[Target, np.ndarray, TransferScores], own: bool) -> None:
    target, shown, _ = planted
    pairs = {} if own else {"train_pairs": False, "lambda1": 1.0}
    settings = LearningSettings.model_validate(
        FAST.model_dump() | {"folds": 1, "safeguard": True, "rounds": 4, "relation": "cosine"} | pairs
    )
    state = Alternation(target, learned(target, shown, relation="cosine"), settings).run()
    measured = [step.objective for step in state.history if step.objective is not None]
    assert len(measured) == len(state.history) >= 3
    assert all(after <= before + 1e-6 * abs(before) for before, after in itertools.pairwise(measured))
    right = [
        torch.from_numpy(shown)[bags] == chosen for bags, chosen in zip(target.positives, state.selection, strict=True)
    ]
    assert torch.cat(right).float().mean() > 0.8


@pytest.mark.parametrize("own", [True, False])
def test_cosines_with_folds_from_what_was_saved(
    planted: tuple[Target, np.ndarray, TransferScores], own: bool, tmp_path: Path
) -> None:
    target, shown, _ = planted
    learned(target, shown, relation="cosine").save(tmp_path / "transfer")
    transfer = TransferScores.load(tmp_path / "transfer")
    pairs = {} if own else {"train_pairs": False, "lambda1": 1.0}
    settings = LearningSettings.model_validate(FAST.model_dump() | {"relation": "cosine"} | pairs)
    state = run_method("full", target, transfer, settings, tmp_path)
    again = run_method("full", target, transfer, settings, tmp_path)
    assert all(map(torch.equal, state.selection, again.selection))
    right = [torch.from_numpy(shown)[b] == s for b, s in zip(target.positives, state.selection, strict=True)]
    assert torch.cat(right).float().mean() > 0.8


def test_what_covers_more_than_half_of_its_picture_loses_score(
    planted: tuple[Target, np.ndarray, TransferScores],
) -> None:
    target, _, transfer = planted
    rows = target.positives[0]
    large = replace(target, transfer=copy.copy(target.transfer))
    large.transfer.share = torch.linspace(0, 1, target.transfer.size).expand(target.transfer.count, -1)
    plain, _ = mixed_scores(large, transfer, None, 0, FAST)
    less, _ = mixed_scores(large, transfer, None, 0, FAST.model_copy(update={"oversize": 3.0}))
    beyond = (large.transfer.share[rows] - 0.5).clamp(min=0)
    torch.testing.assert_close(less, plain - 3 * beyond)
    greatest = FAST.model_copy(update={"oversize": 1e6, "rounds": 0})
    for label, chosen in enumerate(run_method("full", large, transfer, greatest).selection):
        bags = target.positives[label]
        small = (large.transfer.share[bags] <= 0.5) & target.transfer.valid[bags]
        assert small[torch.arange(len(bags)), chosen][small.any(dim=1)].all()


def test_without_the_safeguard_a_bad_training_is_kept(planted: tuple[Target, np.ndarray, TransferScores]) -> None:
    target, _, transfer = planted
    bad = FAST.model_copy(update={"folds": 1, "steps": 1, "lr": 5.0, "rounds": 1, "held_out": 0.0})
    kept = Alternation(target, transfer, bad).run().history
    thrown = Alternation(target, transfer, bad.model_copy(update={"safeguard": True})).run().history
    assert all(step.kept for step in kept)
    assert [step.kept for step in thrown] == [True, False, True]


def test_relocalization_from_the_previous_selection_never_raises_the_energy(
    planted: tuple[Target, np.ndarray, TransferScores],
) -> None:
    target, _, transfer = planted
    random = np.random.default_rng(0)
    for label, bags in enumerate(target.positives):
        unary, pairs = mixed_scores(target, transfer, None, label, FAST)
        before = torch.from_numpy(random.integers(0, target.transfer.size, len(bags)))
        held = torch.from_numpy(random.random(len(bags)) < 0.4)
        found, _ = relocalize_held(unary, pairs, FAST, before, held)
        assert torch.equal(found[~held], before[~held])
        after, start = (energy(unary, pairs, FAST, chosen) for chosen in (found, before))
        assert after <= start + 1e-6 * abs(start)


def test_multi_folding_never_trains_on_a_bag_it_then_relocalizes(
    planted: tuple[Target, np.ndarray, TransferScores],
) -> None:
    """Whatever the held-out bags show, the scores learned without them are the same to the last bit."""
    target, shown, _ = planted
    selection = tuple(torch.from_numpy(shown)[bags] for bags in target.positives)
    fold = fold_of_bags(target, 3, 0)
    allowed = fold != 1
    scores, _ = retrain(target, selection, FAST, allowed=allowed, seed=5)
    assert target.own._held is not None
    kept = target.own._held.clone()
    try:
        target.own._held[~allowed] = 1e6
        other = tuple(
            torch.where(fold[bags] == 1, 0, own) for bags, own in zip(target.positives, selection, strict=True)
        )
        again, _ = retrain(target, other, FAST, allowed=allowed, seed=5)
    finally:
        target.own._held[:] = kept
    for name, tensor in scores.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_bags_larger_than_memory_are_read_ahead_and_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, shown = planted_target(tmp_path / "store", bags=30)
    transfer = learned(held, shown, steps=10)
    store = held.transfer.store
    read = Target.of(Bags(store, "transfer", memory=0), Bags(store, "class", memory=0))
    settings = FAST.model_copy(update={"steps": 5})
    ahead = []
    result = Future.result

    def counted(future: "Future[torch.Tensor]", timeout: float | None = None) -> torch.Tensor:
        ahead.append(future)
        return result(future, timeout)

    monkeypatch.setattr(Future, "result", counted)
    states = [run_method("full", target, transfer, settings) for target in (held, read)]
    assert len(ahead) >= len(held.classes) - 1
    for one, other in zip(*(state.selection for state in states), strict=True):
        assert torch.equal(one, other)


def test_folds_spread_every_class(planted: tuple[Target, np.ndarray, TransferScores]) -> None:
    target, _, _ = planted
    fold = fold_of_bags(target, 4, 0)
    assert set(fold.tolist()) == {0, 1, 2, 3}
    for bags in target.positives:
        counts = torch.bincount(fold[bags], minlength=4)
        assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_what_was_planted(planted: tuple[Target, np.ndarray, TransferScores], method: str) -> None:
    target, shown, transfer = planted
    state = run_method(method, target, transfer, FAST)
    found = [
        float((state.selection[c] == torch.from_numpy(shown)[b]).double().mean())
        for c, b in enumerate(target.positives)
    ]
    chance = 1 / target.transfer.size
    assert np.mean(found) > (3 * chance if method != "mi-svm" else chance)


def test_the_same_seed_gives_the_same_result(planted: tuple[Target, np.ndarray, TransferScores]) -> None:
    target, _, transfer = planted
    one, other = (run_method("full", target, transfer, FAST) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.selection, other.selection, strict=True))


def test_a_run_goes_on_after_any_round(planted: tuple[Target, np.ndarray, TransferScores], tmp_path: Path) -> None:
    target, _, transfer = planted
    whole = run_method("full", target, transfer, FAST)
    for done in range(FAST.rounds):
        alternation = Alternation(target, transfer, FAST.model_copy(update={"rounds": done}))
        save_state(alternation.run(), tmp_path / "state.safetensors")
        again = run_method("full", target, transfer, FAST, tmp_path)
        assert all(torch.equal(a, b) for a, b in zip(whole.selection, again.selection, strict=True))
        assert [s.changed for s in again.history] == [s.changed for s in whole.history]


def test_a_state_comes_back_from_disk(planted: tuple[Target, np.ndarray, TransferScores], tmp_path: Path) -> None:
    target, _, transfer = planted
    state = run_method("full", target, transfer, FAST)
    save_state(replace(state, converged=True), tmp_path / "s")
    again = load_state(tmp_path / "s", target, FAST)
    assert again.history == state.history
    assert again.converged
    for one, other in zip(state.scores, again.scores, strict=True):
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name])


def test_a_class_with_one_bag_takes_its_best_unary_score(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", classes=2, bags=12)
    alone = replace(target, positives=(target.positives[0][:1], target.positives[1][:0]))
    transfer = learned(target, shown, steps=20)
    state = run_method("full", alone, transfer, FAST)
    unary = transfer.unary.of_class(target.transfer.features(alone.positives[0]))
    warm = run_method("warm-up", alone, transfer, FAST)
    assert warm.selection[0].tolist() == unary.argmax(dim=1).tolist()
    assert len(state.selection[1]) == 0


def test_methods_are_settings() -> None:
    assert settings_of("warm-up-unary", FAST).alpha == 0
    assert settings_of("warm-up", FAST).rounds == 0
    assert settings_of("unary", FAST).train_pairs is False
    assert settings_of("full", FAST) == FAST


def test_a_class_that_was_not_learned_has_no_class_scores(planted: tuple[Target, np.ndarray, TransferScores]) -> None:
    target, shown, _ = planted
    one = replace(target, positives=(target.positives[0][:1], target.positives[1][:0], target.positives[2]))
    selection = tuple(torch.from_numpy(shown)[bags] for bags in one.positives)
    scores, _ = retrain(one, selection, FAST.model_copy(update={"held_out": 0.0}))
    assert scores.unary.linear.weight[1].abs().sum() == scores.unary.linear.bias[1] == 0
    assert (scores.relation.score.weight[:2] == 0).all()
    assert scores.unary.linear.weight[0].abs().sum() > 0
    nothing, _ = retrain(
        replace(one, positives=tuple(bags[:0] for bags in one.positives)), tuple(s[:0] for s in selection), FAST
    )
    assert (nothing.unary.linear.weight == 0).all()


def test_groups_bound_what_is_compared_and_one_group_is_the_whole(tmp_path: Path) -> None:
    """A group as large as the class changes nothing; small groups cover every bag once and still find the objects."""
    target, shown = planted_target(tmp_path / "s", classes=2, bags=60)
    transfer = learned(target, shown)
    whole = Alternation(target, transfer, FAST).warm_up()
    same = Alternation(target, transfer, FAST.model_copy(update={"group": 30})).warm_up()
    for a, b in zip(whole.selection, same.selection, strict=True):
        assert torch.equal(a, b)
    small = FAST.model_copy(update={"group": 8})
    assert torch.equal(torch.cat(groups(30, small)).sort().values, torch.arange(30))
    assert max(map(len, groups(30, small))) <= 8
    found = run_method("full", target, transfer, small).selection
    hits = [
        float((s == torch.from_numpy(shown)[b]).double().mean()) for s, b in zip(found, target.positives, strict=True)
    ]
    assert min(hits) > 0.7
