"""Explanations: the parts of a score sum to the score, and the other box is another one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import plain_settings, recipe
from pairloc.boxes import iou
from pairloc.localization.combination import Combination, Weighing
from pairloc.localization.evidence import TERMS
from pairloc.localization.explanation import PAIRS, Explanation
from pairloc.localization.functions import TransferScores
from pairloc.localization.learned import Learned
from pairloc.localization.target import Target

Planted = tuple[Target, np.ndarray, TransferScores]


@pytest.fixture(scope="module")
def learned(planted: Planted) -> Learned:
    first = {name: (0.0, 1.0, 0.3) for name, term in TERMS.items() if term.needs in ("", "pairs", "negatives")}
    second = first | {name: (0.0, 2.0, 0.7) for name, term in TERMS.items() if term.needs == "classes"}
    weighings = (Weighing(terms=first), Weighing(terms=second))
    return Learned(planted[2], combination=Combination(learned_on="", weighings=weighings))


@pytest.mark.parametrize("method", ["warm-up-unary", "warm-up", "full"])
def test_the_parts_of_a_score_sum_to_it(planted: Planted, learned: Learned, method: str) -> None:
    target = planted[0]
    settings = plain_settings(rounds=1, unary={"combination": "learned"}, training={"steps": 5})
    if method == "warm-up-unary":  # without pairs other terms are weighed
        assert learned.combination is not None
        alone = Weighing(terms={name: (0.0, 1.0, 0.5) for name, term in TERMS.items() if not term.needs})
        combination = Combination(learned_on="", weighings=(*learned.combination.weighings, alone))
        learned = replace(learned, combination=combination)
    outcome = recipe(method, target, learned, settings)
    for label, explanation in enumerate(outcome.explanations):
        assert isinstance(explanation, Explanation)
        scores, selection = outcome.scores[label], outcome.state.selection[label]
        rows = torch.arange(len(selection))
        torch.testing.assert_close(explanation.selected.sum(dim=1), scores[rows, selection], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            explanation.other.sum(dim=1), scores[rows, explanation.alternative], atol=1e-4, rtol=1e-4
        )
        pairs = explanation.names.index(PAIRS)
        assert bool(explanation.selected[:, pairs].abs().sum() > 1e-3) == (method != "warm-up-unary")
        boxes = target.boxes(label)
        overlap = iou(boxes[rows, selection][:, None], boxes)[:, 0]
        for row in rows.tolist():
            other = int(explanation.alternative[row])
            candidates = scores[row].masked_fill(overlap[row] > 0.5, -torch.inf)
            assert candidates[other] == candidates.max()


def test_scores_that_are_mixed_have_no_explanation(planted: Planted) -> None:
    outcome = recipe("warm-up", planted[0], planted[2], plain_settings())
    assert set(outcome.explanations) == {None}
