"""Class features: features of proposals from an independently pretrained network.

A feature extractor is any callable from images and boxes to features. Register another one in `EXTRACTORS`, or pass it
to `extract` (see `examples/own_features.py`).
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from pairloc.detector.backbones import IMAGENET, LITE, Maps, Statistics, lite_weights
from pairloc.errors import InputError

_CROP_BATCH = 1024  # crops per forward pass


class FeatureExtractor(Protocol):
    """Computes `d` features for every box of an image."""

    d: int

    def __call__(self, images: list[Tensor], boxes: list[Tensor], /) -> list[Tensor]:
        """Images (3, H, W) in 0 ... 1 and boxes (n, 4) in their pixels -> features (n, d) for each image."""


class BackboneRoI(nn.Module):
    """RoI-pooled features of the two coarsest maps of the frozen ImageNet backbone: one forward pass per image."""

    d = 112 + 320

    def __init__(self, side: int = 256) -> None:
        super().__init__()
        self.maps, self.side = Maps("efficientnet-lite0", pretrained=True, levels=2).eval(), side

    @torch.no_grad()
    def forward(self, images: list[Tensor], boxes: list[Tensor]) -> list[Tensor]:
        """See `FeatureExtractor`; images are stretched to a square of fixed size."""
        batch = torch.stack([stretched(image, self.side) for image in images])
        features = []
        scales = batch.new_tensor([[self.side / p.shape[2], self.side / p.shape[1]] * 2 for p in images])
        scaled = [image_boxes * scale for image_boxes, scale in zip(boxes, scales, strict=True)]
        for level, stride in zip(self.maps(normalised(batch, LITE)), (16, 32), strict=True):
            pooled = roi_align(level, scaled, output_size=3, spatial_scale=1 / stride, sampling_ratio=2, aligned=True)
            features.append(pooled.mean(dim=(2, 3)))
        return list(torch.split(torch.cat(features, dim=1), [len(image_boxes) for image_boxes in boxes]))


class Crops(nn.Module):
    """Features of a network on warped crops: one forward pass per proposal, as in the paper."""

    def __init__(self, network: nn.Module, d: int, side: int, statistics: Statistics) -> None:
        super().__init__()
        self.network, self.d, self.side, self.statistics = network.eval(), d, side, statistics

    @torch.no_grad()
    def forward(self, images: list[Tensor], boxes: list[Tensor]) -> list[Tensor]:
        """See `FeatureExtractor`."""
        crops = [
            roi_align(image[None], [image_boxes], output_size=self.side, sampling_ratio=2, aligned=True)
            for image, image_boxes in zip(images, boxes, strict=True)
        ]
        parts = [
            self.network(normalised(batch, self.statistics)) for batch in torch.split(torch.cat(crops), _CROP_BATCH)
        ]
        return list(torch.split(torch.cat(parts), [len(image_boxes) for image_boxes in boxes]))


class NoFeatures:
    """No class features (d = 0); re-training then uses the transferred features."""

    d = 0

    def __call__(self, images: list[Tensor], boxes: list[Tensor]) -> list[Tensor]:
        """Empty features (n, 0) for each image."""
        return [image_boxes.new_zeros(len(image_boxes), 0) for image_boxes in boxes]


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
    "alexnet-crops": _alexnet_crops,  # downloads the weights on first use
    "none": NoFeatures,
}


def check_class_features(name: str, *, download: bool = True) -> None:
    """Raise an InputError if no class features have this name, or need a download that is not allowed."""
    if name not in EXTRACTORS:
        raise InputError(f"there are no class features {name!r}; known are {', '.join(EXTRACTORS)}")
    if name == "alexnet-crops" and not download:
        raise InputError("the weights of alexnet-crops are a download: allow it with --download (extract.download)")


def feature_extractor(name: str, device: str = "cpu") -> FeatureExtractor:
    """Build a feature extractor by name, on a device. Raises an InputError for an unknown name."""
    check_class_features(name)
    extractor: FeatureExtractor = EXTRACTORS[name]()
    return extractor.to(device) if isinstance(extractor, nn.Module) else extractor


def stretched(image: Tensor, side: int) -> Tensor:
    """Resize an image (3, H, W) to a square (3, side, side), ignoring its aspect ratio."""
    return nn.functional.interpolate(image[None], (side, side), mode="bilinear", align_corners=False, antialias=True)[0]


def normalised(images: Tensor, statistics: Statistics) -> Tensor:
    """Normalise images (n, 3, H, W) in 0 ... 1 with the statistics of a network's training."""
    mean, std = (images.new_tensor(values)[:, None, None] for values in statistics)
    return (images - mean) / std
