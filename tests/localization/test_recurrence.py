"""Recurrence: the summaries against loops over bags and proposals, for both pair scores."""

import math

import numpy as np
import pytest
import torch

from helpers import plain_transfer, planted_scores
from pairloc.localization import recurrence as module
from pairloc.localization.functions import TransferScores
from pairloc.localization.recurrence import References, recurrence
from pairloc.localization.target import Target

Planted = tuple[Target, np.ndarray, TransferScores]


@pytest.mark.parametrize("kind", ["relation", "cosine"])
def test_the_summaries_are_those_of_a_loop_over_bags(
    planted: Planted, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, shown, _ = planted
    monkeypatch.setitem(module._FEWER, kind, (12, 4))
    monkeypatch.setattr(module, "_BEST", 3)
    monkeypatch.setattr(module, "_CHUNK", 4)
    transfer = planted_scores(target, shown, plain_transfer(pairs=kind)).requires_grad_(False)
    references = References.draw(target, transfer, target.positives[1], seed=0)
    assert len(references.bags) == 12
    assert set(references.bags.tolist()) <= set(target.positives[1].tolist())
    bags = torch.cat([target.positives[0][:3], references.bags[:2]])
    others = References.draw(target, transfer, target.positives[0], seed=1)
    found = recurrence(target, transfer, bags, {"others": others, "these": references})["these"]
    for row, bag in enumerate(bags.tolist()):
        for i in range(target.bags.size):
            e = target.bags.features(torch.tensor([bag]))[:, i : i + 1]
            best = []
            for other in references.bags.tolist():
                if other == bag:
                    continue
                features = target.bags.features(torch.tensor([other]))[0]
                likely = transfer.unary.of_class(features).topk(4).indices.tolist()
                scores = []
                for j in likely:
                    f = features[None, j : j + 1]
                    scores.append(float(transfer.relation(e, f) + transfer.relation(f, e)) / 2)
                best.append(max(scores))
            probabilities = sorted((1 / (1 + math.exp(-score)) for score in best), reverse=True)
            mean = math.log(sum(probabilities) / len(probabilities) + 1e-4)
            top = math.log(sum(probabilities[:3]) / 3 + 1e-4)
            expected = (mean, sum(best) / len(best), top)
            assert found[:, row, i].tolist() == pytest.approx(expected, abs=1e-4)


def test_the_number_of_references_does_not_grow_with_the_bags(planted: Planted) -> None:
    target, _, transfer = planted
    everything = torch.arange(target.bags.count).repeat(20)
    references = References.draw(target, transfer, everything, seed=1)
    count, k = module._FEWER.get(transfer.settings.pairs.kind, module._REFERENCES)
    assert len(references.bags) == count
    assert references.packed.shape[:2].numel() <= count * k + target.bags.size
