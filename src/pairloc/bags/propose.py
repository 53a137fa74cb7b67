"""Proposals from a trained Faster R-CNN: boxes that look like any object, with the feature of its box head."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import clip_boxes_to_image, nms

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Proposals:
    """The proposals of one image."""

    boxes: Tensor  # (n, 4) in pixels of the picture
    objectness: Tensor  # (n,) logit of showing any object
    features: Tensor  # (n, d) last layer of the box head


class Seen:
    """Pictures as a Faster R-CNN sees them: scaled, normalised, and its feature maps of them."""

    def __init__(self, model: FasterRCNN, pictures: list[Tensor]) -> None:
        self.model = model
        images, _ = model.transform([_not_too_thin(picture) for picture in pictures])
        self.images: ImageList = images
        self.sizes: list[Size] = images.image_sizes
        self.maps: dict[str, Tensor] = model.backbone(images.tensors)
        self.shapes: list[Size] = [(picture.shape[1], picture.shape[2]) for picture in pictures]
        padded = [_not_too_thin(picture).shape for picture in pictures]
        scales = [
            (shape[2] / width, shape[1] / height) for shape, (height, width) in zip(padded, self.sizes, strict=True)
        ]
        self.scales = [images.tensors.new_tensor([x, y, x, y], dtype=torch.float32) for x, y in scales]

    def pooled(self, boxes: list[Tensor]) -> Tensor:
        """The box head's last layer for boxes as the network sees them: (all boxes, d)."""
        features: Tensor = self.model.roi_heads.box_head(
            self.model.roi_heads.box_roi_pool(self.maps, boxes, self.sizes)
        )
        return features


def _not_too_thin(picture: Tensor) -> Tensor:
    """A picture (3, H, W) padded to at most 16 : 1, so that no side vanishes when it is scaled down."""
    _, height, width = picture.shape
    missing = (max(0, math.ceil(height / 16) - width), max(0, math.ceil(width / 16) - height))
    return nn.functional.pad(picture, (0, missing[0], 0, missing[1])) if any(missing) else picture


@torch.no_grad()
def propose(model: FasterRCNN, pictures: list[Tensor], count: int, overlap: float) -> list[Tensor]:
    """The top `count` boxes (n, 4) of every picture (3, H, W) by class-generic score after NMS, best first."""
    return best_boxes(Seen(model, pictures), count, overlap)


def best_boxes(seen: Seen, count: int, overlap: float) -> list[Tensor]:
    """The same for pictures already seen."""
    regions, _ = seen.model.rpn(seen.images, seen.maps)
    logits, moves = seen.model.roi_heads.box_predictor(seen.pooled(regions))
    moved = seen.model.roi_heads.box_coder.decode(moves.float(), regions)  # (all, classes + 1, 4)
    label = logits[:, 1:].argmax(dim=1) + 1
    boxes = moved[torch.arange(len(label), device=label.device), label]
    scores = objectness(logits.float())
    found = []
    counts = [len(region) for region in regions]
    parts = zip(torch.split(boxes, counts), torch.split(scores, counts), seen.scales, seen.shapes, strict=True)
    for mine, score, scale, shape in parts:
        inside = clip_boxes_to_image(mine * scale, shape)
        sound = ((inside[:, 2:] - inside[:, :2]) >= scale[:2].clamp(max=1)).all(dim=1)  # a pixel of the smaller picture
        inside, sure = inside[sound], score[sound]
        found.append(inside[nms(inside, sure, overlap)[:count]])
    return found


@torch.no_grad()
def describe(seen: Seen, boxes: list[Tensor]) -> list[Proposals]:
    """Objectness and feature of any boxes (n, 4), in pixels of their pictures."""
    scaled = [mine / scale for mine, scale in zip(boxes, seen.scales, strict=True)]
    features = seen.pooled(scaled).float()
    logits, _ = seen.model.roi_heads.box_predictor(features)
    counts = [len(mine) for mine in boxes]
    sure = objectness(logits.float())
    parts = zip(boxes, torch.split(sure, counts), torch.split(features, counts), strict=True)
    return [Proposals(*part) for part in parts]


def objectness(logits: Tensor) -> Tensor:
    """The logit of any class against background, log p / (1 - p): (n, classes + 1) -> (n,)."""
    return torch.logsumexp(logits[:, 1:], dim=1) - logits[:, 0]
