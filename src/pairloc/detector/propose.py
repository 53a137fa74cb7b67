"""Proposals from a trained Faster R-CNN: boxes that look like any object, with the feature of its box head."""

import math

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.image_list import ImageList

from pairloc.detector.batched import kept_by_nms, padded

Size = tuple[int, int]  # height, width


class ImageFeatures:
    """Images as a Faster R-CNN sees them: scaled, normalised, and its feature maps of them."""

    def __init__(self, model: FasterRCNN, images: list[Tensor]) -> None:
        self.model = model
        seen, _ = model.transform([not_too_thin(image) for image in images])
        self.images: ImageList = seen
        self.sizes: list[Size] = seen.image_sizes
        self.maps: dict[str, Tensor] = model.backbone(seen.tensors)
        self.shapes: list[Size] = [(image.shape[1], image.shape[2]) for image in images]
        padded = [not_too_thin(image).shape for image in images]
        scales = [
            (shape[2] / width, shape[1] / height) for shape, (height, width) in zip(padded, self.sizes, strict=True)
        ]
        self.scales = seen.tensors.new_tensor([[x, y, x, y] for x, y in scales], dtype=torch.float32)  # (N, 4)

    def pooled(self, boxes: list[Tensor]) -> Tensor:
        """The box head's last layer for boxes as the network sees them: (all boxes, d)."""
        features: Tensor = self.model.roi_heads.box_head(
            self.model.roi_heads.box_roi_pool(self.maps, boxes, self.sizes)
        )
        return features


def not_too_thin(image: Tensor) -> Tensor:
    """An image (3, H, W) padded to at most 16 : 1, so that no side vanishes when it is scaled down."""
    _, height, width = image.shape
    missing = (max(0, math.ceil(height / 16) - width), max(0, math.ceil(width / 16) - height))
    return nn.functional.pad(image, (0, missing[0], 0, missing[1])) if any(missing) else image


@torch.no_grad()
def propose(model: FasterRCNN, images: list[Tensor], count: int, overlap: float) -> list[Tensor]:
    """The top `count` boxes (n, 4) of every image (3, H, W) by class-generic score after NMS, best first."""
    return best_boxes(ImageFeatures(model, images), count, overlap)


def best_boxes(seen: ImageFeatures, count: int, overlap: float) -> list[Tensor]:
    """The same for images already seen."""
    regions, _ = seen.model.rpn(seen.images, seen.maps)
    logits, moves = seen.model.roi_heads.box_predictor(seen.pooled(regions))
    moved = seen.model.roi_heads.box_coder.decode(moves.float(), regions)  # (all, classes + 1, 4)
    label = logits[:, 1:].argmax(dim=1) + 1
    boxes = moved[torch.arange(len(label), device=label.device), label]
    counts = [len(region) for region in regions]
    table, valid = padded(list(torch.split(boxes, counts)))  # (N, P, 4), (N, P)
    scores, _ = padded(list(torch.split(objectness(logits.float()), counts)))
    limits = table.new_tensor([[w, h, w, h] for h, w in seen.shapes])
    table = torch.minimum((table * seen.scales[:, None]).clamp(min=0), limits[:, None])
    least = seen.scales[:, None, :2].clamp(max=1)  # a pixel of the smaller image
    valid &= ((table[..., 2:] - table[..., :2]) >= least).all(dim=2)
    scores, order = scores.masked_fill(~valid, -torch.inf).sort(dim=1, descending=True, stable=True)
    table = table.gather(1, order[..., None].expand(-1, -1, 4))
    kept = kept_by_nms(table, overlap) & (scores > -torch.inf)
    kept &= kept.cumsum(dim=1) <= count
    return list(torch.split(table[kept], kept.sum(dim=1).tolist()))


@torch.no_grad()
def describe(seen: ImageFeatures, boxes: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Objectness (n,) and feature (n, d) of all boxes (n_i, 4), in pixels of their images, one after the other."""
    features = seen.pooled([mine / scale for mine, scale in zip(boxes, seen.scales, strict=True)]).float()
    logits, _ = seen.model.roi_heads.box_predictor(features)
    return objectness(logits.float()), features


@torch.no_grad()
def predict(seen: ImageFeatures, boxes: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What the network says of boxes (n_i, 4), in pixels of their images, one after the other.

    The log-probability of background and every class (n, classes + 1), and the box of each class (n, classes + 1, 4).
    """
    regions = [mine / scale for mine, scale in zip(boxes, seen.scales, strict=True)]
    logits, moves = seen.model.roi_heads.box_predictor(seen.pooled(regions))
    moved = seen.model.roi_heads.box_coder.decode(moves.float(), regions)
    counts = torch.tensor([len(mine) for mine in boxes], device=moved.device)
    limits = moved.new_tensor([[w, h, w, h] for h, w in seen.shapes]).repeat_interleave(counts, dim=0)
    moved = moved * seen.scales.repeat_interleave(counts, dim=0)[:, None]
    first = torch.minimum(moved[..., :2].clamp(min=0), limits[:, None, :2] - 1)
    last = torch.maximum(torch.minimum(moved[..., 2:], limits[:, None, 2:]), first + 1)  # no box is empty
    return torch.log_softmax(logits.float(), dim=1), torch.cat([first, last], dim=2)


def objectness(logits: Tensor) -> Tensor:
    """The logit of any class against background, log p / (1 - p): (n, classes + 1) -> (n,)."""
    return torch.logsumexp(logits[:, 1:], dim=1) - logits[:, 0]
