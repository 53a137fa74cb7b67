"""Use class features of another network: any timm model on warped crops.

.venv/bin/python examples/own_features.py PROPOSER DATA IMAGES STORE [MODEL]
"""

import sys
from pathlib import Path

import timm
import torch
from torch import Tensor

from pairloc import read
from pairloc.bags.extract import extract
from pairloc.bags.features import Crops
from pairloc.detector.backbones import IMAGENET
from pairloc.settings import ExtractSettings


class TimmCrops:
    """A `FeatureExtractor`: images and boxes in, (n, d) features out."""

    def __init__(self, name: str) -> None:
        network = timm.create_model(name, pretrained=True, num_classes=0)
        self.d: int = network.num_features  # type: ignore[assignment]
        self.crops = Crops(network, self.d, 96, IMAGENET)

    @torch.no_grad()
    def __call__(self, images: list[Tensor], boxes: list[Tensor]) -> list[Tensor]:
        """See `pairloc.bags.features.FeatureExtractor`."""
        return self.crops(images, boxes)  # type: ignore[no-any-return]


if __name__ == "__main__":
    proposer, data, images, store, *rest = sys.argv[1:]
    name = rest[0] if rest else "resnet18"
    settings = ExtractSettings(class_features=f"timm:{name}")
    extract(read(data, images=images), Path(proposer), Path(store), settings, class_features=TimmCrops(name))
    print(f"wrote {store}")
