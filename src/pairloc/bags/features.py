"""Class features: what an independently pretrained network sees in a proposal.

A feature extractor is any callable from images and boxes to features: another one is a line in `EXTRACTORS`, or is
handed over by the caller (see `examples/own_features.py`).
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from pairloc.detector.backbones import IMAGENET, LITE, Maps, Statistics, lite_weights
from pairloc.errors import InputError

_CROPS = 1024  # at a time


class FeatureExtractor(Protocol):
    """Describes boxes of images."""

    d: int

    def __call__(self, images: list[Tensor], boxes: list[Tensor], /) -> list[Tensor]:
        """Images (3, H, W) in 0 ... 1 and boxes (n, 4) in their pixels -> (n, d) an image."""


class BackboneRoI(nn.Module):
    """Pooled regions of the two coarsest maps of the frozen ImageNet backbone: one pass an image."""

    d = 112 + 320

    def __init__(self, side: int = 256) -> None:
        super().__init__()
        self.maps, self.side = Maps("efficientnet-lite0", pretrained=True, levels=2).eval(), side

    @torch.no_grad()
    def forward(self, images: list[Tensor], boxes: list[Tensor]) -> list[Tensor]:
        """See `FeatureExtractor`; images are stretched to one square."""
        batch = torch.stack([stretched(image, self.side) for image in images])
        found = []
        scales = batch.new_tensor([[self.side / p.shape[2], self.side / p.shape[1]] * 2 for p in images])
        relative = [mine * scale for mine, scale in zip(boxes, scales, strict=True)]
        for level, stride in zip(self.maps(normalised(batch, LITE)), (16, 32), strict=True):
            pooled = roi_align(level, relative, output_size=3, spatial_scale=1 / stride, sampling_ratio=2, aligned=True)
            found.append(pooled.mean(dim=(2, 3)))
        return list(torch.split(torch.cat(found, dim=1), [len(mine) for mine in boxes]))


class Crops(nn.Module):
    """A network on warped crops: a pass a proposal, as in the paper."""

    def __init__(self, network: nn.Module, d: int, side: int, statistics: Statistics) -> None:
        super().__init__()
        self.network, self.d, self.side, self.statistics = network.eval(), d, side, statistics

    @torch.no_grad()
    def forward(self, images: list[Tensor], boxes: list[Tensor]) -> list[Tensor]:
        """See `FeatureExtractor`."""
        crops = [
            roi_align(image[None], [mine], output_size=self.side, sampling_ratio=2, aligned=True)
            for image, mine in zip(images, boxes, strict=True)
        ]
        parts = [self.network(normalised(some, self.statistics)) for some in torch.split(torch.cat(crops), _CROPS)]
        return list(torch.split(torch.cat(parts), [len(mine) for mine in boxes]))


class NoFeatures:
    """No class features: re-training then uses the transferred ones."""

    d = 0

    def __call__(self, images: list[Tensor], boxes: list[Tensor]) -> list[Tensor]:
        """Nothing a box: (n, 0)."""
        return [mine.new_zeros(len(mine), 0) for mine in boxes]


def _lite0_crops() -> Crops:
    import timm

    network: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    network.load_state_dict(lite_weights())
    network.reset_classifier(0)
    return Crops(network, 1280, 96, LITE)


def _alexnet_crops() -> Crops:
    from torchvision.models import AlexNet_Weights, alexnet

    network = alexnet(weights=AlexNet_Weights.IMAGENET1K_V1)
    network.classifier = network.classifier[:6]  # up to fc7
    return Crops(network, 4096, 224, IMAGENET)


EXTRACTORS: dict[str, Callable[[], FeatureExtractor]] = {
    "backbone-roi": BackboneRoI,
    "backbone-crops": _lite0_crops,
    "alexnet-crops": _alexnet_crops,  # downloads AlexNet's weights
    "none": NoFeatures,
}


def check_class_features(name: str) -> None:
    """Raise an InputError where there are no class features of that name; no network is built."""
    if name not in EXTRACTORS:
        raise InputError(f"there are no class features {name!r}; known are {', '.join(EXTRACTORS)}")


def feature_extractor(name: str, device: str = "cpu") -> FeatureExtractor:
    """The extractor of a name, on a device."""
    check_class_features(name)
    extractor: FeatureExtractor = EXTRACTORS[name]()
    return extractor.to(device) if isinstance(extractor, nn.Module) else extractor


def stretched(image: Tensor, side: int) -> Tensor:
    """An image (3, H, W) as a square (3, side, side)."""
    return nn.functional.interpolate(image[None], (side, side), mode="bilinear", align_corners=False, antialias=True)[0]


def normalised(images: Tensor, statistics: Statistics) -> Tensor:
    """(n, 3, H, W) in 0 ... 1 as a network was trained with."""
    mean, std = (images.new_tensor(values)[:, None, None] for values in statistics)
    return (images - mean) / std
