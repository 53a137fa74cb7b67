"""Evidence: every term against its definition written out, and the two ways to combine terms."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import plain_settings, planted_scores, planted_target, recipe
from pairloc.boxes import iou
from pairloc.errors import InputError
from pairloc.localization.class_view import ClassView
from pairloc.localization.combination import Combination, Weighing
from pairloc.localization.evidence import TERMS, Evidence, all_terms, lasting_terms
from pairloc.localization.functions import ClassScores, TransferScores
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Target

Planted = tuple[Target, np.ndarray, TransferScores]


@pytest.fixture(scope="module")
def large(planted: Planted) -> tuple[Target, TransferScores, ClassScores]:
    """Return a target with proposals of all sizes, from nothing to the whole image, and class scores."""
    target, shown, transfer = planted
    bags = copy.copy(target.bags)
    bags.area = torch.linspace(0, 1, bags.size).expand(bags.count, -1)
    selection = tuple(torch.from_numpy(shown)[class_bags] for class_bags in target.positives)
    settings = plain_settings()
    return replace(target, bags=bags), transfer, retrain(target, selection, settings, settings.energy)[0]


@pytest.mark.parametrize(("lambda2", "penalty"), [(0.5, 3.0), (0.25, 0.0), (0.0, 1.0), (1.0, 2.0)])
@pytest.mark.parametrize("warm_up", [True, False])
@torch.no_grad()
def test_the_mixed_unary_is_the_paper_s_sum_minus_the_penalty(
    large: tuple[Target, TransferScores, ClassScores], lambda2: float, penalty: float, warm_up: bool
) -> None:
    target, transfer, class_scores = large
    settings = plain_settings(energy={"lambda2": lambda2}, unary={"area_penalty": penalty, "max_area": 0.95})
    label = 2
    found = ClassView(target, transfer, label, settings).unary(None if warm_up else class_scores)
    transfer_weight = 1.0 if warm_up else lambda2
    for row, bag in enumerate(target.positives[label].tolist()):
        features, class_features = (bags.features(torch.tensor([bag]))[0] for bags in (target.bags, target.class_bags))
        for proposal in range(target.bags.size):
            area = float(target.bags.area[bag, proposal])
            if area > 0.95:
                assert found[row, proposal] == -torch.inf
                continue
            of_transfer = float(features[proposal] @ transfer.unary.linear.weight[0] + transfer.unary.linear.bias[0])
            of_class = float(
                class_features[proposal] @ class_scores.unary.linear.weight[label]
                + class_scores.unary.linear.bias[label]
            )
            expected = (1 - transfer_weight) * of_class + transfer_weight * of_transfer - penalty * max(area - 0.5, 0.0)
            assert float(found[row, proposal]) == pytest.approx(expected, abs=1e-4)


def test_proposals_larger_than_half_the_image_are_penalised(
    large: tuple[Target, TransferScores, ClassScores],
) -> None:
    target, transfer, _ = large
    penalised = ClassView(target, transfer, 0, plain_settings(unary={"area_penalty": 3.0})).unary(None)
    plain = ClassView(target, transfer, 0, plain_settings()).unary(None)
    beyond = (target.bags.area[target.positives[0]] - 0.5).clamp(min=0)
    torch.testing.assert_close(penalised, plain - 3 * beyond)
    strict = plain_settings(unary={"area_penalty": 1e6}, rounds=0)
    for label, chosen in enumerate(recipe("full", target, transfer, strict).state.selection):
        bags = target.positives[label]
        small = (target.bags.area[bags] <= 0.5) & target.bags.valid[bags]
        assert small[torch.arange(len(bags)), chosen][small.any(dim=1)].all()


@pytest.fixture(scope="module")
def known(planted: Planted) -> tuple[ClassView, ClassScores]:
    """Return a class of a target with known classes, images of two tags and images of different sizes."""
    target, shown, transfer = planted
    generator = torch.Generator().manual_seed(3)
    probabilities = torch.rand(target.bags.count, target.bags.size, 4, generator=generator) / 4
    tagged = target.tagged.clone()
    tagged[::5, 1] = True
    bags = copy.copy(target.bags)
    bags.area = torch.rand(bags.area.shape, generator=generator)
    bags.sizes = [(80 + 5 * (i % 7), 100) for i in range(bags.count)]
    positives = tuple(torch.nonzero(column)[:, 0] for column in tagged.T)
    several = replace(target, bags=bags, tagged=tagged, positives=positives, known=probabilities)
    selection = tuple(torch.from_numpy(shown)[class_bags] for class_bags in positives)
    settings = plain_settings()
    scores = retrain(several, selection, settings, settings.energy)[0]
    return ClassView(several, transfer, 0, settings), scores


@pytest.mark.parametrize("name", ["known class", "doubt", "inside a known class", "border", "lead", "company"])
@torch.no_grad()
def test_a_term_is_its_definition_written_out(known: tuple[ClassView, ClassScores], name: str) -> None:
    view, _ = known
    found = TERMS[name].score(view, None)
    assert found is not None
    target = view.target
    assert target.known is not None
    for row, bag in enumerate(view.bags.tolist()):
        boxes, unary = target.bags.boxes[bag], view.transfer_unary[row].tolist()
        overlap = iou(boxes, boxes).tolist()
        best = target.known[bag].amax(dim=1).tolist()
        corners = boxes.tolist()
        size = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in corners]
        for i, (x1, y1, x2, y2) in enumerate(corners):
            others = [j for j in range(len(corners)) if j != i]
            if name == "known class":
                expected = math.log(best[i] + 1e-3)
            elif name == "doubt":
                shares = (target.known[bag, i] / target.known[bag, i].sum()).tolist()
                expected = -sum(share * math.log(share) for share in shares)
            elif name == "inside a known class":
                expected = 0.0
                for j in others:
                    a1, b1, a2, b2 = corners[j]
                    covered = max(min(x2, a2) - max(x1, a1), 0) * max(min(y2, b2) - max(y1, b1), 0) / size[i]
                    expected = max(expected, covered * best[j] if size[j] > size[i] else 0.0)
            elif name == "border":
                width, height = target.bags.sizes[bag]
                sides = (x1 < 0.02 * width, y1 < 0.02 * height, x2 > 0.98 * width, y2 > 0.98 * height)
                expected = float(sum(sides))
            elif name == "lead":
                near = [unary[j] for j in others if overlap[i][j] > 0.4]
                expected = min(max(unary[i] - max(near, default=-math.inf), -5.0), 5.0)
            else:
                expected = sum(overlap[i][j] / (1 + math.exp(-unary[j])) for j in others)
            assert float(found[row, i]) == pytest.approx(expected, abs=1e-4), (name, row, i)


@torch.no_grad()
def test_the_other_tags_of_an_image_claim_its_proposals(known: tuple[ClassView, ClassScores]) -> None:
    view, scores = known
    found = TERMS["other tag"].score(view, scores)
    assert found is not None
    claimed = 0
    for row, bag in enumerate(view.bags.tolist()):
        others = [label for label in torch.nonzero(view.target.tagged[bag])[:, 0].tolist() if label != view.label]
        if not others:
            assert found[row].isnan().all()
            continue
        claimed += 1
        expected = torch.stack([scores.unary.of_class(view.class_features[row], label) for label in others]).amax(dim=0)
        torch.testing.assert_close(found[row], expected)
    assert claimed
    assert TERMS["other tag"].score(view, None) is None
    assert TERMS["class score"].score(view, None) is None


@pytest.mark.parametrize("own", range(4))
def test_the_known_classes_are_the_own_one_and_the_others(known: tuple[ClassView, ClassScores], own: int) -> None:
    view, _ = known
    every = view.known
    assert every is not None
    assert view.own is None
    of_the_tag = ClassView(replace(view.target, own=(own, None, None)), view.transfer, 0, view.settings)
    others, itself = of_the_tag.known, of_the_tag.own
    assert others is not None
    assert itself is not None
    assert torch.equal(others + itself[..., None] * torch.nn.functional.one_hot(torch.tensor(own), 4), every)
    assert (others[..., own] == 0).all()
    assert (itself > 0).all()
    again, other_tag = view.known, ClassView(of_the_tag.target, view.transfer, 1, view.settings)
    assert again is not None
    assert torch.equal(every, again)  # the target is unchanged
    former, now = ClassView(view.target, view.transfer, 1, view.settings).known, other_tag.known
    assert former is not None
    assert now is not None
    assert torch.equal(former, now)
    assert other_tag.own is None


@torch.no_grad()
def test_the_own_class_of_a_tag_is_a_term_for_it_alone(known: tuple[ClassView, ClassScores]) -> None:
    """A proposal that shows only the tag's own class: no other known class, in no known class, and surely the tag."""
    view, _ = known
    assert view.target.known is not None
    surely = view.target.known.clone()
    surely[..., 2] = 0.9
    target = replace(view.target, known=surely, own=(2, None, None))
    found = lasting_terms(ClassView(target, view.transfer, 0, view.settings))
    without = replace(view.target, known=surely * torch.tensor([1, 1, 0, 1]))
    expected = lasting_terms(ClassView(without, view.transfer, 0, view.settings))
    assert set(found.names) - set(expected.names) == {"own class"}
    for name in expected.names:
        torch.testing.assert_close(found.column(name), expected.column(name))
    torch.testing.assert_close(found.column("own class"), torch.full_like(found.column("own class"), math.log(0.901)))


def weighing(*names: str) -> Weighing:
    return Weighing(terms={name: (0.1 * i, 1.0 + i, 0.5 - i) for i, name in enumerate(names)})


@torch.no_grad()
def test_the_learned_unary_is_the_weighted_sum_of_standardised_terms(known: tuple[ClassView, ClassScores]) -> None:
    view, scores = known
    names = ("transfer score", "known class", "recurrence", "elsewhere", "class score", "other tag")
    combination = Combination(learned_on="", weighings=(weighing(*names), weighing(*names[:4])))
    terms = lasting_terms(view)
    learned = ClassView(view.target, view.transfer, 0, view.settings, evidence=Evidence(terms, combination))
    for class_scores, used in ((None, names[:4]), (scores, names)):
        found = learned.unary(class_scores)
        table = all_terms(view, terms, class_scores)
        expected = torch.zeros_like(found)
        for name, (mean, std, weight) in weighing(*used).terms.items():
            expected += weight * ((table.column(name) - mean) / std).nan_to_num().clamp(-3.5, 3.5)
        torch.testing.assert_close(found, expected)


def test_the_evidence_of_a_group_is_that_of_its_bags(known: tuple[ClassView, ClassScores]) -> None:
    view, scores = known
    combination = Combination(learned_on="", weighings=(weighing("recurrence", "elsewhere", "lead"),))
    evidence_of_class = Evidence(lasting_terms(view), combination)
    settings = plain_settings(energy={"max_compared_bags": 4})
    whole = ClassView(view.target, view.transfer, 0, settings, evidence=evidence_of_class)
    groups = list(whole.groups())
    assert len(groups) > 1
    for rows, group in groups:
        torch.testing.assert_close(group.unary(scores), whole.unary(scores)[rows])


def test_what_cannot_be_computed_is_left_out(tmp_path: Path, known: tuple[ClassView, ClassScores]) -> None:
    """One tag alone has no bags without it; without pair scores nothing recurs; imported boxes know no classes."""
    view, _ = known
    assert set(lasting_terms(view).names) == {
        name for name, term in TERMS.items() if term.needs not in ("classes", "own")
    }
    alone, _ = planted_target(tmp_path / "s", classes=1, bags=8)
    names = lasting_terms(ClassView(alone, planted_scores(*planted_target(tmp_path / "t")), 0, plain_settings())).names
    assert "recurrence" in names
    assert not {"elsewhere", "known class", "doubt"} & set(names)
    silent = ClassView(view.target, view.transfer, 0, view.settings, view.energy.without_pairs())
    assert {TERMS[name].needs for name in lasting_terms(silent).names} == {"", "known"}


def test_a_combination_of_unknown_terms_is_refused(known: tuple[ClassView, ClassScores]) -> None:
    view, _ = known
    other = Evidence(lasting_terms(view), Combination(learned_on="", weighings=(weighing("of a later version"),)))
    with pytest.raises(InputError, match="fits none"):
        ClassView(view.target, view.transfer, 0, view.settings, evidence=other).unary(None)
