"""Evidence: the unary of a class is the weighted sum of its terms."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import plain_settings, recipe
from pairloc.localization import evidence
from pairloc.localization.class_view import ClassView
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
def test_the_unary_is_the_weighted_sum_of_its_terms(
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


def test_a_term_without_weight_is_never_computed(
    large: tuple[Target, TransferScores, ClassScores], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, transfer, class_scores = large
    called: set[str] = set()

    def counted(name: str, term: evidence.Term) -> evidence.Term:
        def count(view: ClassView, scores: ClassScores | None) -> torch.Tensor:
            called.add(name)
            return term.score(view, scores)

        return evidence.Term(count, term.weight)

    for name, term in list(evidence.TERMS.items()):
        monkeypatch.setitem(evidence.TERMS, name, counted(name, term))
    all_terms = set(evidence.TERMS)
    for lambda2, penalty, warm_up, unneeded in (
        (0.5, 3.0, False, set()),
        (1.0, 3.0, False, {"class score"}),
        (0.0, 3.0, False, {"transfer score"}),
        (0.5, 0.0, False, {"area beyond half"}),
        (0.0, 0.0, True, {"class score", "area beyond half"}),
    ):
        called.clear()
        settings = plain_settings(energy={"lambda2": lambda2}, unary={"area_penalty": penalty})
        ClassView(target, transfer, 0, settings).unary(None if warm_up else class_scores)
        assert called == all_terms - unneeded


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
