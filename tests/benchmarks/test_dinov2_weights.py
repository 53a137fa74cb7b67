"""The conversion of DINOv2's weights: a converted block computes what the original one does, written out."""

import importlib.util
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor
from torch.nn import functional

FILE = Path(__file__).parents[2] / "benchmarks" / "dinov2_weights.py"
SPEC = importlib.util.spec_from_file_location("dinov2_weights", FILE)
assert SPEC is not None
assert SPEC.loader is not None
conversion = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(conversion)
D, HEADS = 384, 6


def arrays() -> dict[str, Tensor]:
    """Random weights under the names of the ONNX file; linear layers under those of their nodes."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return 0.05 * torch.randn(shape, generator=generator)

    named = {
        "backbone.embeddings.cls_token": some(1, 1, D),
        "positions": some(1, 1 + 37 * 37, D),
        "backbone.embeddings.patch_embeddings.projection.weight": some(D, 3, 14, 14),
        "backbone.embeddings.patch_embeddings.projection.bias": some(D),
        "backbone.layernorm.weight": some(D),
        "backbone.layernorm.bias": some(D),
    }
    for block in range(conversion.BLOCKS):
        layer, node = f"backbone.encoder.layer.{block}", f"backbone/encoder/layer.{block}"
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"):
            named[f"{layer}.{name}"] = some(D)
        named[f"{layer}.layer_scale1.lambda1"], named[f"{layer}.layer_scale2.lambda1"] = some(D), some(D)
        parts = [f"attention/attention/{part}" for part in ("query", "key", "value")]
        for part, out, into in (*((p, D, D) for p in (*parts, "attention/output/dense")), ("mlp/fc1", 4 * D, D)):
            named[f"{node}/{part}"], named[f"{layer}.{part.replace('/', '.')}.bias"] = some(out, into), some(out)
        named[f"{node}/mlp/fc2"], named[f"{layer}.mlp.fc2.bias"] = some(D, 4 * D), some(D)
    return named


def test_a_block_is_attention_and_two_layers_each_scaled_and_added() -> None:
    named = arrays()
    network: Any = timm.create_model("vit_small_patch14_dinov2", pretrained=False, num_classes=0).eval()
    network.load_state_dict(conversion.convert(named))
    layer, node = "backbone.encoder.layer.3", "backbone/encoder/layer.3"
    x = torch.randn(5, D)

    def norm(name: str, value: Tensor) -> Tensor:
        return functional.layer_norm(value, (D,), named[f"{layer}.{name}.weight"], named[f"{layer}.{name}.bias"], 1e-6)

    def linear(part: str, value: Tensor) -> Tensor:
        return value @ named[f"{node}/{part}"].T + named[f"{layer}.{part.replace('/', '.')}.bias"]

    query, key, value = (
        linear(f"attention/attention/{part}", norm("norm1", x)).unflatten(1, (HEADS, -1)).transpose(0, 1)
        for part in ("query", "key", "value")
    )
    attended = torch.softmax(query @ key.transpose(1, 2) / (D / HEADS) ** 0.5, dim=2) @ value
    middle = x + named[f"{layer}.layer_scale1.lambda1"] * linear(
        "attention/output/dense", attended.transpose(0, 1).flatten(1)
    )
    hidden = functional.gelu(linear("mlp/fc1", norm("norm2", middle)))
    expected = middle + named[f"{layer}.layer_scale2.lambda1"] * linear("mlp/fc2", hidden)
    with torch.no_grad():
        torch.testing.assert_close(network.blocks[3](x[None])[0], expected, rtol=1e-4, atol=1e-5)


def test_the_ends_keep_their_weights() -> None:
    named = arrays()
    weights = conversion.convert(named)
    assert torch.equal(weights["pos_embed"], named["positions"])
    assert torch.equal(weights["norm.bias"], named["backbone.layernorm.bias"])
    assert torch.equal(
        weights["patch_embed.proj.weight"], named["backbone.embeddings.patch_embeddings.projection.weight"]
    )
