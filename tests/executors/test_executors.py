"""Executors: the same results in the same order, whoever does the work; what goes wrong reaches the caller."""

import operator
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers import plain_settings, plain_transfer, planted_store, planted_truth
from pairloc.executors import Executor, Processes, Serial, executor
from pairloc.localization.engine import learn_source, localize_target


def test_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    """To the byte: boxes, confidence, selection and scores of the whole method; and an exception comes through."""
    store, shown = planted_store(tmp_path / "s", bags=15, noise=0.6)
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=10))
    settings = plain_settings(rounds=1, folds=2, training={"steps": 10}, boxes={"voting_iou": 0.3})
    workers: tuple[Executor, ...] = (Serial(), Processes(2))
    one, other = (localize_target(store, store.dataset, learned, settings, executor=own) for own in workers)
    for name in ("image", "label", "boxes", "score"):
        assert getattr(one.boxes, name).tobytes() == getattr(other.boxes, name).tobytes(), name
    for pair in ((one.state.selection, other.state.selection), (one.scores, other.scores)):
        assert all(map(torch.equal, *pair))
    for mine, theirs in zip(one.state.scores, other.state.scores, strict=True):
        for name, tensor in mine.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name]), name
    with pytest.raises(ZeroDivisionError):
        Processes(2).map(partial(operator.floordiv, 6), [1, 0, 2])


@pytest.mark.parametrize("own", [Serial(), Processes(2)])
def test_one_item_or_none_is_done_here(own: Executor) -> None:
    here: list[int] = []
    assert own.map(here.append, [7]) == [None]
    assert own.map(here.append, []) == []
    assert here == [7]
    with pytest.raises(ZeroDivisionError):
        own.map(partial(operator.floordiv, 6), [0])


def test_results_are_in_order() -> None:
    assert Serial().map(partial(operator.mul, 2), [3, 1, 2]) == [6, 2, 4]


def test_a_number_of_processes_names_the_executor() -> None:
    assert isinstance(executor(), Serial)
    several = executor(3)
    assert isinstance(several, Processes)
    assert several.count == 3
