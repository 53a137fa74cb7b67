"""Theorems about the alternating loop, on planted bags."""

import itertools

import numpy as np
import pytest
import torch

from helpers import found_fraction, plain_settings, plain_transfer, planted_scores
from pairloc.localization.alternate import Alternation, State
from pairloc.localization.class_view import ClassView
from pairloc.localization.functions import TransferScores
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Target
from pairloc.settings import LocalizationSettings

Planted = tuple[Target, np.ndarray, TransferScores]


def alternation(target: Target, transfer: TransferScores, settings: LocalizationSettings) -> Alternation:
    return Alternation(target, transfer, settings, settings.energy)


def never_rises(state: State) -> None:
    measured = [step.objective for step in state.history]
    assert len(measured) >= 3
    for before, after in itertools.pairwise(measured):
        assert before is not None
        assert after is not None
        assert after <= before + 1e-6 * abs(before)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("alpha_scale", ["none", "per_bag"])
def test_the_objective_never_rises(planted: Planted, seed: int, alpha_scale: str) -> None:
    target, _, transfer = planted
    settings = plain_settings(folds=1, safeguard=True, rounds=4, seed=seed, energy={"alpha_scale": alpha_scale})
    never_rises(alternation(target, transfer, settings).run())


@pytest.mark.parametrize("lambda1", [0.5, 1.0])
@pytest.mark.parametrize("fit", ["sampled", "exact"])
def test_the_objective_never_rises_with_cosine_scores(planted: Planted, lambda1: float, fit: str) -> None:
    target, shown, _ = planted
    settings = plain_settings(
        folds=1, safeguard=True, rounds=4, pairs={"kind": "cosine"}, energy={"lambda1": lambda1}, unary={"fit": fit}
    )
    state = alternation(target, planted_scores(target, shown, plain_transfer(pairs="cosine")), settings).run()
    never_rises(state)
    assert found_fraction(target, shown, state.selection) > 0.8


def test_only_the_safeguard_discards_a_bad_training(planted: Planted) -> None:
    target, _, transfer = planted
    bad = {"folds": 1, "rounds": 1, "training": {"steps": 1, "lr": 5.0, "held_out": 0.0}}
    kept = alternation(target, transfer, plain_settings(**bad)).run().history
    discarded = alternation(target, transfer, plain_settings(**bad, safeguard=True)).run().history
    assert all(step.kept for step in kept)
    assert [step.kept for step in discarded] == [True, False, True]


def test_the_objective_sums_over_classes_and_is_none_with_folds(planted: Planted) -> None:
    target, _, transfer = planted
    one = alternation(target, transfer, plain_settings(folds=1))
    state = one.warm_up()
    total = 0.0
    for label, selection in enumerate(state.selection):
        total += one.objective.without_selection(label, transfer, None)
        total += ClassView(target, transfer, label, one.settings).problem(None).energy(selection)
    assert state.history[0].objective == pytest.approx(total)
    assert alternation(target, transfer, plain_settings(folds=2)).warm_up().history[0].objective is None


def test_the_loop_stops_after_a_round_without_changes(planted: Planted) -> None:
    target, _, transfer = planted
    settings = plain_settings(rounds=20, folds=1, safeguard=True, unary={"fit": "exact"}, pairs={"kind": "cosine"})
    transfer = planted_scores(target, planted[1], plain_transfer(pairs="cosine"))
    state = alternation(target, transfer, settings).run()
    assert state.converged
    assert state.n_iter < 20
    assert state.history[-1].changed == 0
    again = alternation(target, transfer, settings).run(state)
    assert again is state


def test_every_half_step_is_recorded_and_logged(planted: Planted) -> None:
    target, _, transfer = planted
    lines: list[str] = []
    saved: list[State] = []
    settings = plain_settings(rounds=2, folds=2)
    state = Alternation(target, transfer, settings, settings.energy, log=lines.append, after_round=saved.append).run()
    steps = [(step.round, step.step) for step in state.history]
    assert steps[:3] == [(0, "re-localize"), (1, "re-train"), (1, "re-localize")]
    assert [round_state.n_iter for round_state in saved] == list(range(state.n_iter + 1))
    assert saved[-1] is state
    assert len(state.curves) == 2 * state.n_iter
    assert state.history[0].changed == sum(map(len, target.positives))
    assert lines[0].startswith(f"initial selection: {state.history[0].changed} boxes, ")
    for number in range(1, state.n_iter + 1):
        logged = [line for line in lines if line.startswith(f"round {number}: ")]
        assert ["re-trained on the boxes" in line for line in logged] == [True, False]
        assert " boxes changed, " in logged[1]
    assert torch.equal(saved[0].fold, state.fold)


def test_every_fold_is_selected_by_scores_not_trained_on_it(planted: Planted) -> None:
    """Re-training leaves a fold out, and the scores learned without a fold select its proposals."""
    target, _, transfer = planted
    settings = plain_settings(folds=3, seed=2)
    energy = settings.energy.without_pairs()
    loop = Alternation(target, transfer, settings, energy)
    warm = loop.warm_up()
    trained = loop.retrain(warm, 1)
    for fold, class_scores in enumerate(trained.scores):
        seed = settings.seed + 1000 + fold
        expected, _ = retrain(target, warm.selection, settings, energy, allowed=warm.fold != fold, seed=seed)
        for name, tensor in expected.state_dict().items():
            assert torch.equal(tensor, class_scores.state_dict()[name]), name
    for label, chosen in enumerate(loop.relocalize(trained, 1).selection):
        folds = warm.fold[target.positives[label]]
        view = ClassView(target, transfer, label, settings, energy)
        for fold, class_scores in enumerate(trained.scores):
            best = view.unary(class_scores).argmax(dim=1)
            assert torch.equal(chosen[folds == fold], best[folds == fold])
