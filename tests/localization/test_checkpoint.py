"""Checkpoints: a state is loaded as it was saved, and a run resumes from it to the same result."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from helpers import plain_settings, planted_target, recipe
from pairloc.errors import InputError
from pairloc.localization.alternate import Alternation
from pairloc.localization.checkpoint import STATE, load_state, save_state
from pairloc.localization.functions import TransferScores
from pairloc.localization.target import Target

Planted = tuple[Target, np.ndarray, TransferScores]
SETTINGS = plain_settings()


def test_a_run_resumes_after_any_round(planted: Planted, tmp_path: Path) -> None:
    target, _, transfer = planted
    uninterrupted = recipe("full", target, transfer, SETTINGS)
    for done in range(SETTINGS.rounds):
        partial = plain_settings(rounds=done)
        save_state(Alternation(target, transfer, partial, partial.energy).run(), tmp_path / STATE)
        again = recipe("full", target, transfer, SETTINGS, tmp_path)
        assert all(map(torch.equal, uninterrupted.state.selection, again.state.selection))
        assert all(map(torch.equal, uninterrupted.confidence, again.confidence))
        assert [step.changed for step in again.state.history] == [step.changed for step in uninterrupted.state.history]


def test_a_saved_state_is_loaded_unchanged(planted: Planted, tmp_path: Path) -> None:
    target, _, transfer = planted
    state = recipe("full", target, transfer, SETTINGS).state
    save_state(replace(state, converged=True), tmp_path / "s")
    again = load_state(tmp_path / "s", target, SETTINGS)
    assert again is not None
    assert again.history == state.history
    assert again.curves == state.curves
    assert again.converged
    assert torch.equal(again.fold, state.fold)
    for pair in ((again.selection, state.selection), (again.gaps, state.gaps)):
        assert all(map(torch.equal, *pair))
    for one, other in zip(state.scores, again.scores, strict=True):
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name])


def test_a_missing_state_is_none_and_a_damaged_one_is_an_error(planted: Planted, tmp_path: Path) -> None:
    target, _, transfer = planted
    file = tmp_path / "s"
    assert load_state(file, target, SETTINGS) is None
    file.write_bytes(b"not a safetensors file")
    with pytest.raises(InputError, match="cannot be resumed from") as caught:
        load_state(file, target, SETTINGS)
    assert len(str(caught.value).splitlines()) == 1
    save_state(recipe("warm-up", target, transfer, SETTINGS).state, file)
    save_file({name: array for name, array in load_file(file).items() if name != "fold"}, file)
    with pytest.raises(InputError, match="delete it"):
        load_state(file, target, SETTINGS)


def test_the_state_of_another_target_is_refused(planted: Planted, tmp_path: Path) -> None:
    target, _, transfer = planted
    save_state(recipe("warm-up", target, transfer, SETTINGS).state, tmp_path / "s")
    other, _ = planted_target(tmp_path / "store", bags=12)
    with pytest.raises(InputError, match="it belongs to another target"):
        load_state(tmp_path / "s", other, SETTINGS)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("selection.0", lambda array: array + 9999),
        ("selection.0", lambda array: -1 - array),
        ("selection.0", lambda array: array.astype(np.float32)),
        ("fold", lambda array: array[:3]),
        ("gaps.1", lambda array: array[:1]),
    ],
)
def test_a_state_that_does_not_fit_the_bags_is_one_sentence(
    planted: Planted, tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    target, _, transfer = planted
    file = tmp_path / "s"
    save_state(recipe("warm-up", target, transfer, SETTINGS).state, file)
    with safe_open(file, framework="np") as stored:
        facts = stored.metadata()
    arrays = load_file(file)
    save_file(arrays | {name: change(arrays[name])}, file, facts)
    with pytest.raises(InputError, match="cannot be resumed from"):
        load_state(file, target, SETTINGS)


@pytest.mark.parametrize("key", ["history", "curves"])
@pytest.mark.parametrize("value", ["3", '[{"round": "x"}]', "[[1]]", "{"])
def test_facts_of_another_shape_are_one_sentence(planted: Planted, tmp_path: Path, key: str, value: str) -> None:
    target, _, transfer = planted
    file = tmp_path / "s"
    save_state(recipe("warm-up", target, transfer, SETTINGS).state, file)
    with safe_open(file, framework="np") as stored:
        facts = stored.metadata() | {key: value}
    save_file(load_file(file), file, facts)
    with pytest.raises(InputError, match="cannot be resumed from"):
        load_state(file, target, SETTINGS)
