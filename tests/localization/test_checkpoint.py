"""A state on disk: what comes back is what was written, and a run goes on from it to the same result."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from helpers import plain_settings, planted_target, recipe
from pairloc.errors import InputError
from pairloc.localization.alternate import Alternation
from pairloc.localization.checkpoint import STATE, load_state, save_state
from pairloc.localization.functions import TransferScores
from pairloc.localization.target import Target

Planted = tuple[Target, np.ndarray, TransferScores]
SETTINGS = plain_settings()


def test_a_run_goes_on_after_any_round(planted: Planted, tmp_path: Path) -> None:
    target, _, transfer = planted
    whole = recipe("full", target, transfer, SETTINGS)
    for done in range(SETTINGS.rounds):
        partly = plain_settings(rounds=done)
        save_state(Alternation(target, transfer, partly, partly.energy).run(), tmp_path / STATE)
        again = recipe("full", target, transfer, SETTINGS, tmp_path)
        assert all(map(torch.equal, whole.state.selection, again.state.selection))
        assert all(map(torch.equal, whole.confidence, again.confidence))
        assert [step.changed for step in again.state.history] == [step.changed for step in whole.state.history]


def test_a_state_comes_back_from_disk(planted: Planted, tmp_path: Path) -> None:
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


def test_there_is_none_at_first_and_a_broken_one_is_one_sentence(planted: Planted, tmp_path: Path) -> None:
    target, _, transfer = planted
    file = tmp_path / "s"
    assert load_state(file, target, SETTINGS) is None
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="is not a state that can be gone on from") as caught:
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
    with pytest.raises(InputError, match="it is of another target"):
        load_state(tmp_path / "s", other, SETTINGS)
