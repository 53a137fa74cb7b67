from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import planted_store
from pairloc.bags.tensors import Bags
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.errors import InputError
from pairloc.experiments.tuning import Game, draw_classes, tune
from pairloc.settings import LearningSettings, TransferSettings

TRANSFER = TransferSettings(steps=20, pairs=8, lr=0.01)
LEARNING = LearningSettings(steps=5, pairs=4, rounds=1, folds=2, k=2, iterations=10)


@pytest.fixture
def game(tmp_path: Path) -> Game:
    store, shown = planted_store(tmp_path / "s", classes=8, bags=64, d=16)
    bags = Bags(store, "transfer")
    label = np.array([tags[0] for tags in store.dataset.tags])
    boxes = bags.boxes[torch.arange(bags.count), torch.from_numpy(shown)].double().numpy()
    truth = GroundTruth(np.arange(bags.count), label, boxes, np.zeros(bags.count, dtype=np.bool_))
    return Game(store, (store.dataset, truth), draw_classes(store.dataset, 3, 0), "cpu")


def test_no_image_is_on_both_sides_and_the_boxes_of_playing_classes_are_gone(game: Game) -> None:
    draw = game.draw
    assert not set(draw.source) & set(draw.target)
    assert not np.isin(game.source[1].label, draw.classes).any()
    assert len(game.dataset.classes) == 3
    assert len(game.truth) == len(draw.target)
    assert all(tags for tags in game.dataset.tags)


def test_a_search_keeps_the_best_and_says_all_it_tried(game: Game) -> None:
    lines: list[str] = []
    search = (("learning.alpha", (0.5, 2.0), "warm-up"), ("transfer.foreground_iou", (0.4, 0.7), "warm-up"))
    transfer, learning, tried = tune([game], TRANSFER, LEARNING, search, lines.append)
    assert len(lines) == len(tried) == 4
    best = max(tried[:2], key=lambda entry: entry.merit)
    assert learning.alpha == best.value
    assert transfer.background_iou <= transfer.foreground_iou
    assert all(0 <= entry.corloc70 <= entry.corloc50 <= 1 for entry in tried)


def test_a_value_that_contradicts_the_others_is_not_tried(game: Game) -> None:
    released = LEARNING.model_copy(update={"train_unary": False, "lambda2": 1.0})
    lines: list[str] = []
    _, learning, tried = tune([game], TRANSFER, released, (("learning.lambda2", (0.25, 0.5), "full"),), lines.append)
    assert tried == []
    assert learning == released
    assert "not tried" in lines[0]


def test_too_few_classes(tmp_path: Path) -> None:
    store, _ = planted_store(tmp_path / "s", classes=3)
    with pytest.raises(InputError, match="too few to hold 3 out"):
        draw_classes(store.dataset, 3, 0)
