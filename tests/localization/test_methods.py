"""The methods: each finds planted objects and is deterministic."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import found_fraction, plain, plain_settings, plain_transfer, planted_scores, planted_target, recipe
from pairloc.bags.tensors import Bags
from pairloc.errors import InputError
from pairloc.localization.functions import TransferScores
from pairloc.localization.methods import METHODS, check_method
from pairloc.localization.target import Target

OF_BAGS = [name for name, method in METHODS.items() if not method.needs_classifiers]  # the others: test_lsda.py
OF_THE_PAPER = [name for name, method in METHODS.items() if method.section is METHODS["full"].section]
Planted = tuple[Target, np.ndarray, TransferScores]


@pytest.mark.parametrize("method", OF_BAGS)
def test_every_method_finds_planted_objects(planted: Planted, method: str) -> None:
    target, shown, transfer = planted
    outcome = recipe(method, target, transfer, plain_settings(training={"steps": 120}))
    chance = 1 / target.bags.size
    minimum = 3 * chance if method != "mi-svm" else chance
    assert found_fraction(target, shown, outcome.state.selection) > minimum
    for label, bags in enumerate(target.positives):
        assert outcome.scores[label].shape == (len(bags), target.bags.size)
        assert len(outcome.confidence[label]) == len(outcome.agreement[label]) == len(bags)


@pytest.mark.parametrize("method", OF_BAGS)
def test_the_same_seed_gives_the_same_result(planted: Planted, method: str) -> None:
    target, _, transfer = planted
    one, other = (recipe(method, target, transfer, plain_settings()) for _ in range(2))
    for pair in ((one.state.selection, other.state.selection), (one.scores, other.scores)):
        assert all(map(torch.equal, *pair))
    assert all(map(torch.equal, one.confidence, other.confidence))


def test_methods_are_ablations_of_full(planted: Planted) -> None:
    """`unary` is `full` with alpha 0, `warm-up` is `full` without rounds, `warm-up-unary` is both."""
    target, _, transfer = planted
    settings = plain_settings()
    no_pairs = plain_settings(energy={"alpha": 0.0})
    for method, same, how in (
        ("warm-up-unary", "full", plain_settings(energy={"alpha": 0.0}, rounds=0)),
        ("warm-up", "full", plain_settings(rounds=0)),
        ("unary", "full", no_pairs),
    ):
        one, other = recipe(method, target, transfer, settings), recipe(same, target, transfer, how)
        assert all(map(torch.equal, one.state.selection, other.state.selection)), method
        assert one.state.n_iter == other.state.n_iter == (0 if method.startswith("warm-up") else other.state.n_iter)
    unary = recipe("warm-up-unary", target, transfer, settings).state.selection
    for label, bags in enumerate(target.positives):
        best = transfer.unary.of_class(target.bags.features(bags)).argmax(dim=1)
        assert torch.equal(unary[label], best)


@pytest.mark.parametrize("lambda1", [0.5, 1.0])
def test_cosine_scores_with_folds_work_from_a_checkpoint(planted: Planted, lambda1: float, tmp_path: Path) -> None:
    target, shown, _ = planted
    planted_scores(target, shown, plain_transfer(pairs="cosine")).save(tmp_path / "transfer")
    transfer = TransferScores.load(tmp_path / "transfer")
    settings = plain_settings(pairs={"kind": "cosine"}, energy={"lambda1": lambda1})
    one = recipe("full", target, transfer, settings, tmp_path)
    again = recipe("full", target, transfer, settings, tmp_path)
    assert all(map(torch.equal, one.state.selection, again.state.selection))
    assert found_fraction(target, shown, one.state.selection) > 0.8


def test_a_class_with_one_bag_takes_its_best_unary_score(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", classes=2, bags=12)
    small_target = replace(target, positives=(target.positives[0][:1], target.positives[1][:0]))
    transfer = planted_scores(target, shown, plain_transfer(steps=20))
    outcome = recipe("full", small_target, transfer, plain_settings())
    unary = transfer.unary.of_class(target.bags.features(small_target.positives[0]))
    warm = recipe("warm-up", small_target, transfer, plain_settings())
    assert warm.state.selection[0].tolist() == unary.argmax(dim=1).tolist()
    assert len(outcome.state.selection[1]) == len(outcome.scores[1]) == len(outcome.confidence[1]) == 0


def test_bags_larger_than_memory_give_the_same_result(tmp_path: Path) -> None:
    in_memory, shown = planted_target(tmp_path / "store", bags=30)
    transfer = planted_scores(in_memory, shown, plain_transfer(steps=10))
    store = in_memory.bags.store
    from_disk = Target.of(
        Bags(store, plain("transfer"), memory=0), lambda: Bags(store, plain("class"), memory=0), store.dataset
    )
    assert from_disk.bags._cached is None
    one, other = (
        recipe("full", target, transfer, plain_settings(training={"steps": 5})) for target in (in_memory, from_disk)
    )
    assert all(map(torch.equal, one.state.selection, other.state.selection))


@pytest.mark.parametrize("method", OF_THE_PAPER)
def test_no_method_selects_a_proposal_larger_than_max_area(planted: Planted, method: str) -> None:
    target, _, transfer = planted
    area = target.bags.area.masked_fill(~target.bags.valid, torch.inf)
    limit = float(area.amin(dim=1).max())  # every bag has a proposal of at most this area
    above = []
    for max_area in (1.0, limit):
        settings = plain_settings(rounds=1, folds=2, unary={"max_area": max_area}, training={"steps": 5})
        selection = recipe(method, target, transfer, settings).state.selection
        pairs = zip(target.positives, selection, strict=True)
        above.append(any((target.bags.area[bags, chosen] > limit).any() for bags, chosen in pairs))
    assert above == [True, False]


@pytest.mark.parametrize("method", ["best", "fine-tuned"])
def test_an_unknown_method_is_refused(method: str) -> None:
    with pytest.raises(InputError, match=f"there is no method '{method}'; known are warm-up-unary"):
        check_method(method)
