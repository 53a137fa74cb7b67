from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import planted_store
from pairloc.bags.tensors import Bags
from pairloc.boxes import iou
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.localization.functions import TransferScores
from pairloc.localization.transfer import BACKGROUND, NEITHER, Labels, label_proposals, learn_transfer
from pairloc.settings import TransferSettings

SETTINGS = TransferSettings(steps=150, pairs=16, lr=0.01, foreground_iou=0.6, background_iou=0.4)


def truth_of(bags: Bags, shown: np.ndarray) -> GroundTruth:
    """The planted proposals' own boxes."""
    label = np.array([tags[0] for tags in bags.store.dataset.tags])
    boxes = bags.boxes[torch.arange(bags.count), torch.from_numpy(shown)].double().numpy()
    return GroundTruth(np.arange(bags.count), label, boxes, np.zeros(bags.count, dtype=np.bool_))


def test_labels_equal_the_loop(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", proposals=20)
    bags = Bags(store, "transfer")
    truth = truth_of(bags, shown)
    crowd = np.arange(bags.count) % 5 == 0
    truth = GroundTruth(truth.image, truth.label, truth.boxes, crowd)
    labels = label_proposals(bags, store.dataset, truth, SETTINGS)
    for i in range(bags.count):
        overlap = iou(bags.boxes[i].double().numpy(), truth.boxes[i][None])[:, 0]
        for value, found in zip(overlap.tolist(), labels.shown[i].tolist(), strict=True):
            if value >= 0.6 and not crowd[i]:
                assert found == truth.label[i]
            elif value < 0.4:
                assert found == BACKGROUND
            else:
                assert found == NEITHER


def test_learned_scores_tell_objects_and_classes_apart(tmp_path: Path) -> None:
    """An object by itself, and two objects of one class against two of different ones."""
    store, shown = planted_store(tmp_path / "s", classes=6, bags=120, d=24, noise=0.2)
    bags = Bags(store, "transfer")
    labels = label_proposals(bags, store.dataset, truth_of(bags, shown), SETTINGS)
    scores, curve = learn_transfer(bags, labels, SETTINGS)
    assert curve[-1]["held-out loss"] < 0.7 * curve[0]["held-out loss"]
    features = bags.features(torch.arange(bags.count))
    unary = scores.unary.of_class(features)
    assert float((unary.argmax(dim=1) == torch.from_numpy(shown)).double().mean()) > 0.8
    objects = features[torch.arange(bags.count), torch.from_numpy(shown)]
    with torch.no_grad():
        pair = scores.relation(objects[None], objects[None])[0, :, :, 0]
    label = torch.arange(bags.count) % 6
    same = label[:, None] == label
    assert float(pair[same].median()) > float(pair[~same].quantile(0.95))


def test_scores_come_back_from_disk(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s")
    bags = Bags(store, "transfer", dimensions=5)
    labels = label_proposals(bags, store.dataset, truth_of(bags, shown), SETTINGS)
    scores, _ = learn_transfer(bags, labels, SETTINGS.model_copy(update={"steps": 5}))
    scores.save(tmp_path / "t")
    again = TransferScores.load(tmp_path / "t")
    features = bags.features(torch.arange(4))
    torch.testing.assert_close(again.unary(features), scores.unary(features))
    torch.testing.assert_close(again.relation(features, features), scores.relation(features, features))
    (tmp_path / "t" / "transfer.safetensors").write_bytes(b"x")
    with pytest.raises(InputError, match="does not hold transfer scores"):
        TransferScores.load(tmp_path / "t")


def test_a_loss_that_is_not_a_number_stops_and_is_named(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s")
    bags = Bags(store, "transfer")
    labels = label_proposals(bags, store.dataset, truth_of(bags, shown), SETTINGS)
    assert bags._held is not None
    bags._held[:, :, 0] = torch.nan
    with pytest.raises(InputError, match="not a number in batch 1; lower lr"):
        learn_transfer(bags, labels, SETTINGS)


def test_a_source_without_objects_is_refused(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s")
    bags = Bags(store, "transfer")
    with pytest.raises(InputError, match="fewer than two images"):
        learn_transfer(bags, Labels.of(torch.full((bags.count, bags.size), BACKGROUND)), SETTINGS)
