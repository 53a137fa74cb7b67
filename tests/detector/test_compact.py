"""Weights in one byte each."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pairloc.detector.compact import SCALE, compacted, restored
from pairloc.detector.model import WEIGHTS, Proposer, build
from pairloc.errors import InputError
from pairloc.io import write_tensors
from pairloc.settings import ProposerSettings


@given(seed=st.integers(0, 1000), spread=st.floats(1e-6, 1e4))
@settings(max_examples=30, deadline=None)
def test_every_weight_changes_by_at_most_half_a_level_of_its_row(seed: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(64, 1, 1, 1, generator=generator) * spread
    tensor = torch.randn(64, 8, 3, 3, generator=generator) * rows
    level = tensor.flatten(1).abs().amax(dim=1) / 127
    error = (restored(compacted({"layer": tensor}))["layer"] - tensor).flatten(1).abs()
    assert bool((error <= level[:, None] * 0.5001).all())


def test_the_largest_weight_of_a_row_and_zero_stay_exact() -> None:
    tensor = torch.zeros(64, 128)
    tensor[3, 5], tensor[4, 6] = -0.7, 3.0
    assert torch.equal(restored(compacted({"layer": tensor}))["layer"], tensor)


def test_what_is_not_a_large_matrix_of_moderate_numbers_stays_floating_point() -> None:
    weights = {"bias": torch.rand(5000), "small": torch.rand(2, 3), "variance": torch.full((64,), 1e6)}
    counts = {"num_batches_tracked": torch.tensor(7)}
    stored = compacted(weights | counts)
    assert {name: tensor.dtype for name, tensor in stored.items()} == {
        "bias": torch.float16, "small": torch.float16, "variance": torch.float32, "num_batches_tracked": torch.int64
    }  # fmt: skip
    found = restored(stored)
    assert all(torch.allclose(found[name].float(), tensor, rtol=1e-3) for name, tensor in weights.items())


@pytest.mark.parametrize(
    "weights",
    [
        {"a" + SCALE: torch.ones(3)},
        {"a": torch.ones(3, 2), "a" + SCALE: torch.ones(3)},
        {"a": torch.ones(3, 2, dtype=torch.int8), "a" + SCALE: torch.ones(2)},
    ],
)
def test_scales_that_fit_nothing_are_refused(weights: dict[str, Tensor]) -> None:
    with pytest.raises(InputError, match="do not fit"):
        restored(weights)


def test_a_proposer_with_compact_weights_is_a_quarter_of_the_size_and_answers_alike(tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = ProposerSettings(backbone="efficientnet-lite0", pretrained=False, image_size=64, head=64, pyramid=16)
    proposer = Proposer(build(settings, 3), settings, ("a", "b", "c"))
    proposer.save(tmp_path)
    size = (tmp_path / WEIGHTS).stat().st_size
    write_tensors(tmp_path / WEIGHTS, compacted(proposer.model.state_dict()))
    assert (tmp_path / WEIGHTS).stat().st_size < 0.3 * size
    image = torch.rand(3, 48, 64)
    maps = [Proposer.load(tmp_path).model.backbone(image[None])["0"], proposer.model.backbone(image[None])["0"]]
    assert torch.corrcoef(torch.stack([entry.flatten() for entry in maps]))[0, 1] > 0.99


def test_compact_weights_with_wrong_scales_are_one_sentence(tmp_path: Path) -> None:
    settings = ProposerSettings(backbone="efficientnet-lite0", pretrained=False, image_size=64, head=64, pyramid=16)
    proposer = Proposer(build(settings, 3), settings, ("a", "b", "c"))
    proposer.save(tmp_path)
    stored = compacted(proposer.model.state_dict())
    name = next(name for name in stored if name.endswith(SCALE))
    write_tensors(tmp_path / WEIGHTS, stored | {name: torch.ones(1)})
    with pytest.raises(InputError, match="do not fit any weights"):
        Proposer.load(tmp_path)
