"""The conversion of Keras' ResNet-50: every converted layer computes what the Keras layer does, written out."""

import importlib.util
from pathlib import Path

import torch
from torchvision.models import resnet50

FILE = Path(__file__).parents[2] / "benchmarks" / "resnet50_weights.py"
SPEC = importlib.util.spec_from_file_location("resnet50_weights", FILE)
assert SPEC is not None
assert SPEC.loader is not None
conversion = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(conversion)


def test_every_layer_is_convolution_bias_and_batch_norm_of_keras() -> None:
    network = resnet50().eval()
    shapes = {name: tensor.shape for name, tensor in network.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    keras = {"fc1000/kernel": torch.randn(2048, 1000, generator=generator), "fc1000/bias": torch.randn(1000)}
    for convolution, _, their_convolution, their_norm in conversion.layers().values():
        out, into, height, width = shapes[f"{convolution}.weight"]
        scale = (into * height * width) ** -0.5
        kernel = scale * torch.randn(height, width, into, out, generator=generator)  # HWIO
        keras[f"{their_convolution}/kernel"] = kernel
        keras[f"{their_convolution}/bias"] = torch.randn(out, generator=generator)
        for name in ("gamma", "beta", "moving_mean"):
            keras[f"{their_norm}/{name}"] = torch.randn(out, generator=generator)
        # Small variances, for which the two epsilons differ.
        keras[f"{their_norm}/moving_variance"] = 0.01 * torch.rand(out, generator=generator)
    missing, unexpected = network.load_state_dict(conversion.convert(keras), strict=False)
    assert all(name.endswith("num_batches_tracked") for name in missing)
    assert unexpected == []
    modules = dict(network.named_modules())
    for convolution, norm, their_convolution, their_norm in conversion.layers().values():
        kernel = keras[f"{their_convolution}/kernel"]
        height, width, into, _ = kernel.shape
        patch = torch.randn(height, width, into, generator=generator)
        gamma, beta, mean, variance = (
            keras[f"{their_norm}/{name}"] for name in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        convolved = torch.einsum("hwi,hwio->o", patch, kernel) + keras[f"{their_convolution}/bias"]
        expected = gamma * (convolved - mean) / (variance + 1e-3).sqrt() + beta
        ours = patch.flip(-1) if convolution == "conv1" else patch  # Keras reads BGR, pairloc RGB
        weight = modules[convolution].weight
        assert isinstance(weight, torch.Tensor)
        with torch.no_grad():
            found = modules[norm](torch.nn.functional.conv2d(ours.permute(2, 0, 1)[None], weight))[0, :, 0, 0]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        network.fc.weight @ torch.ones(2048), keras["fc1000/kernel"].sum(dim=0), atol=1e-3, rtol=1e-3
    )
