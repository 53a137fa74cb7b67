"""Executors give the same results in the same order, and exceptions reach the caller."""

import operator
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers import plain_settings, plain_transfer, planted_store, planted_truth
from pairloc.executors import Executor, Processes, Serial, executor
from pairloc.localization.engine import learn_source, localize_target


def test_processes_and_one_process_give_identical_results(tmp_path: Path) -> None:
    """Boxes, confidence, selection and scores of the whole method are identical; exceptions are re-raised."""
    store, shown = planted_store(tmp_path / "s", bags=15, noise=0.6)
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=10))
    settings = plain_settings(rounds=1, folds=2, training={"steps": 10}, boxes={"voting_iou": 0.3})
    executors: tuple[Executor, ...] = (Serial(), Processes(2))
    serial, parallel = (
        localize_target(store, store.dataset, learned, settings, executor=executor) for executor in executors
    )
    for name in ("image", "label", "boxes", "score"):
        assert getattr(serial.boxes, name).tobytes() == getattr(parallel.boxes, name).tobytes(), name
    for pair in ((serial.state.selection, parallel.state.selection), (serial.scores, parallel.scores)):
        assert all(map(torch.equal, *pair))
    for expected, actual in zip(serial.state.scores, parallel.state.scores, strict=True):
        for name, tensor in expected.state_dict().items():
            assert torch.equal(tensor, actual.state_dict()[name]), name
    with pytest.raises(ZeroDivisionError):
        Processes(2).map(partial(operator.floordiv, 6), [1, 0, 2])


@pytest.mark.parametrize("any_executor", [Serial(), Processes(2)])
def test_one_item_or_none_runs_in_this_process(any_executor: Executor) -> None:
    calls: list[int] = []
    assert any_executor.map(calls.append, [7]) == [None]
    assert any_executor.map(calls.append, []) == []
    assert calls == [7]
    with pytest.raises(ZeroDivisionError):
        any_executor.map(partial(operator.floordiv, 6), [0])


def test_results_are_in_order() -> None:
    assert Serial().map(partial(operator.mul, 2), [3, 1, 2]) == [6, 2, 4]


def test_the_number_of_processes_selects_the_executor() -> None:
    assert isinstance(executor(), Serial)
    pool = executor(3)
    assert isinstance(pool, Processes)
    assert pool.count == 3
