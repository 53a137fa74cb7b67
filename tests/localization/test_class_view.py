"""One class: the problems of held-out bags and of groups agree with the problem of the whole class."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import found_fraction, plain_settings, plain_transfer, planted_scores, planted_target, recipe
from pairloc.inference import NoPairs
from pairloc.localization.alternate import Alternation
from pairloc.localization.class_view import ClassView
from pairloc.localization.functions import TransferScores
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Target, fold_of_bags

Planted = tuple[Target, np.ndarray, TransferScores]


def test_relocalization_from_the_previous_selection_never_raises_the_energy(planted: Planted) -> None:
    """The energy of the held-out bags, with the others as anchors, and the energy of the whole class."""
    target, _, transfer = planted
    random = np.random.default_rng(0)
    for label, bags in enumerate(target.positives):
        view = ClassView(target, transfer, label, plain_settings())
        before = torch.from_numpy(random.integers(0, target.bags.size, len(bags)))
        held_out = torch.from_numpy(random.random(len(bags)) < 0.4)
        after = before.clone()
        problem = view.problem(None, before, held_out)
        found = problem.solve("unary", previous=before[held_out])
        assert found.energy <= problem.energy(before[held_out]) + 1e-6
        after[held_out] = found.selection
        whole = view.problem(None)
        start = whole.energy(before)
        assert whole.energy(after) <= start + 1e-6 * abs(start)


def test_a_held_out_problem_differs_from_the_whole_by_a_constant(planted: Planted) -> None:
    target, _, transfer = planted
    view = ClassView(target, transfer, 0, plain_settings())
    random = np.random.default_rng(1)
    held_out = torch.arange(len(view)) % 3 == 0
    fixed = torch.from_numpy(random.integers(0, target.bags.size, len(view)))
    differences = []
    for _ in range(4):
        selection = torch.where(held_out, torch.from_numpy(random.integers(0, target.bags.size, len(view))), fixed)
        problem = view.problem(None, fixed, held_out)
        differences.append(view.problem(None).energy(selection) - problem.energy(selection[held_out]))
    assert differences == pytest.approx([differences[0]] * 4, abs=1e-4)


def test_an_energy_without_pairs_disables_pair_scores(planted: Planted) -> None:
    target, _, transfer = planted
    settings = plain_settings()
    assert isinstance(ClassView(target, transfer, 0, settings, settings.energy.without_pairs()).pairs(None), NoPairs)
    assert not isinstance(ClassView(target, transfer, 0, settings).pairs(None), NoPairs)


def test_conditional_scores_differ_as_the_energy_of_the_class(planted: Planted) -> None:
    """Without folds, scores of a bag differ by the change of the energy, with and without class scores."""
    target, shown, transfer = planted
    selection = tuple(torch.from_numpy(shown)[bags] for bags in target.positives)
    settings = plain_settings(folds=1)
    class_scores, _ = retrain(target, selection, settings, settings.energy)
    view = ClassView(target, transfer, 1, settings)
    chosen, one_fold = selection[1], torch.zeros(len(view), dtype=torch.int64)
    for scores in ((), (class_scores,)):
        found = view.conditional(scores, chosen, one_fold)
        problem = view.problem(class_scores if scores else None)
        for bag in (0, 5, 11):
            energies = []
            for proposal in range(target.bags.size):
                other = chosen.clone()
                other[bag] = proposal
                energies.append(problem.energy(other))
            change = torch.tensor(energies) - energies[int(chosen[bag])]
            assert torch.allclose(found[bag, chosen[bag]] - found[bag], change.to(found), atol=1e-3)


def test_with_folds_every_bag_is_scored_by_scores_not_trained_on_it(planted: Planted) -> None:
    target, shown, transfer = planted
    settings = plain_settings(folds=2)
    selection = tuple(torch.from_numpy(shown)[bags] for bags in target.positives)
    fold = fold_of_bags(target, 2, 0)
    scores = tuple(
        retrain(target, selection, settings, settings.energy, allowed=fold != f, seed=f)[0] for f in range(2)
    )
    view = ClassView(target, transfer, 0, settings)
    class_fold = fold[target.positives[0]]
    one_fold = torch.zeros_like(class_fold)
    found = view.conditional(scores, selection[0], class_fold)
    for f in range(2):
        of_fold = view.conditional((scores[f],), selection[0], one_fold)
        torch.testing.assert_close(found[class_fold == f], of_fold[class_fold == f], atol=1e-4, rtol=1e-4)


def test_groups_cover_the_class_and_one_large_group_changes_nothing(tmp_path: Path) -> None:
    """Small groups contain every bag once and still find the objects."""
    target, shown = planted_target(tmp_path / "s", classes=2, bags=60)
    transfer = planted_scores(target, shown)
    plain = plain_settings()
    same = plain_settings(energy={"max_compared_bags": 30})
    one, other = (Alternation(target, transfer, settings, settings.energy).warm_up() for settings in (plain, same))
    assert all(map(torch.equal, one.selection, other.selection))
    small = plain_settings(energy={"max_compared_bags": 8})
    groups = [rows for rows, _ in ClassView(target, transfer, 0, small).groups()]
    assert torch.equal(torch.cat(groups).sort().values, torch.arange(30))
    assert max(map(len, groups)) <= 8
    assert found_fraction(target, shown, recipe("full", target, transfer, small).state.selection) > 0.7


def test_a_group_is_scored_like_its_bags_in_the_whole_class(tmp_path: Path) -> None:
    target, shown = planted_target(tmp_path / "s", classes=1, bags=20)
    transfer = planted_scores(target, shown)
    whole = ClassView(target, transfer, 0, plain_settings(energy={"max_compared_bags": 7}))
    for rows, view in whole.groups():
        torch.testing.assert_close(view.unary(None), whole.unary(None)[rows])
        first, second = torch.tensor([0]), torch.tensor([1])
        block = whole.pairs(None).block(rows[first], rows[second])
        torch.testing.assert_close(view.pairs(None).block(first, second), block)


@pytest.mark.parametrize("limit", [1, 2, 7, 11, 29])
def test_groups_do_not_exceed_max_compared_bags(tmp_path: Path, limit: int) -> None:
    """Group sizes differ by at limit one."""
    target, shown = planted_target(tmp_path / "s", classes=1, bags=30)
    transfer = planted_scores(target, shown, plain_transfer(steps=1))
    view = ClassView(target, transfer, 0, plain_settings(energy={"max_compared_bags": limit}))
    groups = [rows for rows, _ in view.groups()]
    assert torch.equal(torch.cat(groups).sort().values, torch.arange(30))
    assert max(map(len, groups)) <= max(limit, 2)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
