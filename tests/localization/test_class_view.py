"""One class: what its problems are, by held-out bags, by groups, and what they have in common with the whole."""

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import found_share, plain_settings, plain_transfer, planted_scores, planted_target, recipe
from pairloc.inference import NoPairs
from pairloc.localization.alternate import Alternation
from pairloc.localization.class_view import ClassView
from pairloc.localization.functions import TransferScores
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Target, fold_of_bags

Planted = tuple[Target, np.ndarray, TransferScores]


def test_relocalization_from_the_previous_selection_never_raises_the_energy(planted: Planted) -> None:
    """Of the held-out bags' problem, whose anchors are the others, and of the whole."""
    target, _, transfer = planted
    random = np.random.default_rng(0)
    for label, bags in enumerate(target.positives):
        view = ClassView(target, transfer, label, plain_settings())
        before = torch.from_numpy(random.integers(0, target.bags.size, len(bags)))
        held = torch.from_numpy(random.random(len(bags)) < 0.4)
        after = before.clone()
        for rows, problem in view.problems(None, before, held):
            assert torch.equal(rows, torch.nonzero(held)[:, 0])
            found = problem.solve("unary", previous=before[rows])
            assert found.energy <= problem.energy(before[rows]) + 1e-6
            after[rows] = found.selection
        whole = view.problem(None)
        start = whole.energy(before)
        assert whole.energy(after) <= start + 1e-6 * abs(start)


def test_a_held_out_problem_differs_from_the_whole_by_a_constant(planted: Planted) -> None:
    target, _, transfer = planted
    view = ClassView(target, transfer, 0, plain_settings())
    random = np.random.default_rng(1)
    held = torch.arange(len(view)) % 3 == 0
    fixed = torch.from_numpy(random.integers(0, target.bags.size, len(view)))
    differences = []
    for _ in range(4):
        selection = torch.where(held, torch.from_numpy(random.integers(0, target.bags.size, len(view))), fixed)
        ((rows, problem),) = view.problems(None, fixed, held)
        differences.append(view.problem(None).energy(selection) - problem.energy(selection[rows]))
    assert differences == pytest.approx([differences[0]] * 4, abs=1e-4)


def test_pairs_are_left_out_at_alpha_zero_and_by_an_energy_of_its_own(planted: Planted) -> None:
    target, _, transfer = planted
    settings = plain_settings()
    assert isinstance(ClassView(target, transfer, 0, settings, settings.energy.without_pairs()).pairs(None), NoPairs)
    assert not isinstance(ClassView(target, transfer, 0, settings).pairs(None), NoPairs)


def test_the_conditional_score_is_what_a_change_of_one_bag_changes(planted: Planted) -> None:
    """Without folds, scores of one bag differ as the energies of the whole do, with and without class scores."""
    target, shown, transfer = planted
    selection = tuple(torch.from_numpy(shown)[bags] for bags in target.positives)
    settings = plain_settings(folds=1)
    own, _ = retrain(target, selection, settings, settings.energy)
    view = ClassView(target, transfer, 1, settings)
    chosen, alone = selection[1], torch.zeros(len(view), dtype=torch.int64)
    for scores in ((), (own,)):
        found = view.conditional(scores, chosen, alone)
        problem = view.problem(own if scores else None)
        for bag in (0, 5, 11):
            energies = []
            for proposal in range(target.bags.size):
                other = chosen.clone()
                other[bag] = proposal
                energies.append(problem.energy(other))
            change = torch.tensor(energies) - energies[int(chosen[bag])]
            assert torch.allclose(found[bag, chosen[bag]] - found[bag], change.to(found), atol=1e-3)


def test_with_folds_every_bag_is_seen_by_the_scores_that_never_saw_it(planted: Planted) -> None:
    target, shown, transfer = planted
    settings = plain_settings(folds=2)
    selection = tuple(torch.from_numpy(shown)[bags] for bags in target.positives)
    fold = fold_of_bags(target, 2, 0)
    scores = tuple(
        retrain(target, selection, settings, settings.energy, allowed=fold != f, seed=f)[0] for f in range(2)
    )
    view = ClassView(target, transfer, 0, settings)
    own = fold[target.positives[0]]
    everyone = torch.zeros_like(own)
    found = view.conditional(scores, selection[0], own)
    for f in range(2):
        of_fold = view.conditional((scores[f],), selection[0], everyone)
        torch.testing.assert_close(found[own == f], of_fold[own == f], atol=1e-4, rtol=1e-4)


def test_groups_bound_what_is_compared_and_one_group_is_the_whole(tmp_path: Path) -> None:
    """A group as large as the class changes nothing; small groups cover every bag once and still find the objects."""
    target, shown = planted_target(tmp_path / "s", classes=2, bags=60)
    transfer = planted_scores(target, shown)
    plain = plain_settings()
    same = plain_settings(energy={"max_compared_bags": 30})
    one, other = (Alternation(target, transfer, own, own.energy).warm_up() for own in (plain, same))
    assert all(map(torch.equal, one.selection, other.selection))
    small = plain_settings(energy={"max_compared_bags": 8})
    groups = ClassView(target, transfer, 0, small).groups()
    assert torch.equal(torch.cat(groups).sort().values, torch.arange(30))
    assert max(map(len, groups)) <= 8
    assert found_share(target, shown, recipe("full", target, transfer, small).state.selection) > 0.7


@pytest.mark.parametrize("most", [1, 2, 7, 11, 29])
def test_groups_are_at_most_as_large_as_was_asked_for(tmp_path: Path, most: int) -> None:
    """Their number is rounded, so that a group has up to half as many bags again."""
    target, shown = planted_target(tmp_path / "s", classes=1, bags=30)
    transfer = planted_scores(target, shown, plain_transfer(steps=1))
    view = ClassView(target, transfer, 0, plain_settings(energy={"max_compared_bags": most}))
    groups = view.groups()
    assert torch.equal(torch.cat(groups).sort().values, torch.arange(30))
    assert max(map(len, groups)) <= max(most, 2)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
