"""Proposals from a trained Faster R-CNN: class-agnostic boxes with the features of its box head."""

import math

import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.image_list import ImageList

from pairloc.detector.batched import kept_by_nms, padded

Size = tuple[int, int]  # height, width
_MIN_REGIONS = 300  # minimum number of region proposals per image; three per requested box if that is more


class ImageFeatures:
    """The feature maps of N images (3, H, W), scaled and normalised as a Faster R-CNN needs them.

    `scales` (N, 4) converts boxes from pixels of the network's input to pixels of the images.
    """

    def __init__(self, model: FasterRCNN, images: list[Tensor]) -> None:
        self.model = model
        inputs, _ = model.transform([pad_thin(image) for image in images])
        self.images: ImageList = inputs
        self.sizes: list[Size] = inputs.image_sizes  # sizes of the scaled images
        self.maps: dict[str, Tensor] = model.backbone(inputs.tensors)
        self.shapes: list[Size] = [(image.shape[1], image.shape[2]) for image in images]
        padded_shapes = [pad_thin(image).shape for image in images]
        scales = [
            (shape[2] / width, shape[1] / height)
            for shape, (height, width) in zip(padded_shapes, self.sizes, strict=True)
        ]
        self.scales = inputs.tensors.new_tensor([[x, y, x, y] for x, y in scales], dtype=torch.float32)  # (N, 4)

    def regions(self, count: int) -> list[Tensor]:
        """At most `count` region proposals (n, 4) of every image, in pixels of the network's input.

        They are always computed in single precision: coordinates in bfloat16 are off by a pixel or two.
        """
        rpn = self.model.rpn
        # limits before NMS (per level) and after it (total)
        rpn._pre_nms_top_n["testing"] = rpn._post_nms_top_n["testing"] = count
        with torch.autocast(self.images.tensors.device.type, enabled=False):
            proposals, _ = rpn(self.images, {name: level.float() for name, level in self.maps.items()})
        return list(proposals)

    def pooled(self, boxes: list[Tensor]) -> Tensor:
        """Box-head features (n, d) of all boxes, n in all, given in pixels of the network's input."""
        features: Tensor = self.model.roi_heads.box_head(
            self.model.roi_heads.box_roi_pool(self.maps, boxes, self.sizes)
        )
        return features


def pad_thin(image: Tensor) -> Tensor:
    """Pad an image (3, H, W) to an aspect ratio of at most 16 : 1, so that no side vanishes when it is scaled down."""
    _, height, width = image.shape
    missing = (max(0, math.ceil(height / 16) - width), max(0, math.ceil(width / 16) - height))
    return nn.functional.pad(image, (0, missing[0], 0, missing[1])) if any(missing) else image


@torch.no_grad()
def propose(model: FasterRCNN, images: list[Tensor], count: int, overlap: float) -> list[Tensor]:
    """The `count` boxes (n, 4) of every image (3, H, W) with the highest objectness after NMS at IoU `overlap`."""
    return best_boxes(ImageFeatures(model, images), count, overlap)


def best_boxes(features: ImageFeatures, count: int, overlap: float) -> list[Tensor]:
    """The same as `propose`, given the feature maps of the images."""
    regions = features.regions(max(_MIN_REGIONS, 3 * count))
    logits, deltas = features.model.roi_heads.box_predictor(features.pooled(regions))
    decoded = features.model.roi_heads.box_coder.decode(deltas.float(), regions)  # (n, classes + 1, 4)
    label = logits[:, 1:].argmax(dim=1) + 1
    boxes = decoded[torch.arange(len(label), device=label.device), label]
    counts = [len(region) for region in regions]
    table, valid = padded(list(torch.split(boxes, counts)))  # (N, P, 4), (N, P)
    scores, _ = padded(list(torch.split(objectness(logits.float()), counts)))
    limits = table.new_tensor([[w, h, w, h] for h, w in features.shapes])
    table = torch.minimum((table * features.scales[:, None]).clamp(min=0), limits[:, None])
    min_side = features.scales[:, None, :2].clamp(max=1)  # one pixel of the image or of the input, whichever is smaller
    valid &= ((table[..., 2:] - table[..., :2]) >= min_side).all(dim=2)
    scores, order = scores.masked_fill(~valid, -torch.inf).sort(dim=1, descending=True, stable=True)
    table = table.gather(1, order[..., None].expand(-1, -1, 4))
    kept = kept_by_nms(table, overlap) & (scores > -torch.inf)
    kept &= kept.cumsum(dim=1) <= count
    return list(torch.split(table[kept], kept.sum(dim=1).tolist()))


@torch.no_grad()
def describe(features: ImageFeatures, boxes: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Objectness (n,) and features (n, d) of the boxes (n_i, 4) of all images, concatenated; boxes in image pixels."""
    regions = [image_boxes / scale for image_boxes, scale in zip(boxes, features.scales, strict=True)]
    pooled = features.pooled(regions).float()
    logits, _ = features.model.roi_heads.box_predictor(pooled)
    return objectness(logits.float()), pooled


@torch.no_grad()
def predict(features: ImageFeatures, boxes: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Classify boxes (n_i, 4) in image pixels and regress them; n boxes of all images, concatenated.

    Returns the log-probabilities of background and classes (n, classes + 1) and one refined box per class
    (n, classes + 1, 4).
    """
    regions = [image_boxes / scale for image_boxes, scale in zip(boxes, features.scales, strict=True)]
    logits, deltas = features.model.roi_heads.box_predictor(features.pooled(regions))
    decoded = features.model.roi_heads.box_coder.decode(deltas.float(), regions)
    counts = torch.tensor([len(image_boxes) for image_boxes in boxes], device=decoded.device)
    limits = decoded.new_tensor([[w, h, w, h] for h, w in features.shapes]).repeat_interleave(counts, dim=0)
    decoded = decoded * features.scales.repeat_interleave(counts, dim=0)[:, None]
    top_left = torch.minimum(decoded[..., :2].clamp(min=0), limits[:, None, :2] - 1)
    bottom_right = torch.maximum(torch.minimum(decoded[..., 2:], limits[:, None, 2:]), top_left + 1)  # no empty box
    return torch.log_softmax(logits.float(), dim=1), torch.cat([top_left, bottom_right], dim=2)


def objectness(logits: Tensor) -> Tensor:
    """Logit log(p / (1 - p)) of the probability p of any class against background: (n, classes + 1) -> (n,)."""
    return torch.logsumexp(logits[:, 1:], dim=1) - logits[:, 0]
