"""Faster R-CNN's loss for boxes that were found, not drawn: only the tags of an image are sure.

A found box may be wrong, and its image may show more objects of the tag. So a region at a found box of class c counts
with the weight w of that box, and any other region of an image with tags T may show one of them:

    l(region at a found box) = -w log p(c)
    l(other region)          = -log (p(background) + share sum_{t in T} p(t))

The loss is the mean over the regions, weighted by w and 1. Images without a tag teach that no region shows it. With
weights of 1 and a share of 0 this is torchvision's loss.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.models.detection import FasterRCNN

from pairloc.boxes import Floats, iou
from pairloc.detector.batched import BatchedRoIHeads, BatchedSampler, padded


@dataclass(frozen=True)
class Weak:
    """What is known about found boxes: a weight (n,) for each, and the share of the tags in other regions."""

    weights: Floats
    tag_share: float = 0.0


Targets = list[dict[str, Tensor]]  # boxes (n, 4), labels (n,), weights (n,) and tags (t,) of every image
_BETA = 1 / 9  # where the box loss turns from quadratic to linear, as in torchvision


def learn_weakly(model: FasterRCNN, tag_share: float) -> FasterRCNN:
    """Make a Faster R-CNN use this loss, in place; its targets then need weights and tags."""
    heads = model.roi_heads
    heads.__class__ = WeakRoIHeads
    heads.tag_share = tag_share
    sampler = heads.fg_bg_sampler
    if not isinstance(sampler, BatchedSampler):
        heads.fg_bg_sampler = BatchedSampler(sampler.batch_size_per_image, sampler.positive_fraction)
    return model


class WeakRoIHeads(BatchedRoIHeads):
    """RoI heads whose training weighs found boxes and lets other regions show the image's tags."""

    tag_share: float

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: Targets | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections, or in training the losses."""
        if not self.training:
            found: tuple[list[dict[str, Tensor]], dict[str, Tensor]] = super().forward(
                features, proposals, image_shapes, targets
            )
            return found
        assert targets is not None
        regions, _, labels, deltas = self.select_training_samples(proposals, targets)
        logits, regression = self.box_predictor(self.box_head(self.box_roi_pool(features, regions, image_shapes)))
        weights = torch.cat([region_weights(*entry) for entry in zip(regions, labels, targets, strict=True)])
        tags, real = padded([target["tags"] for target in targets])
        image = torch.repeat_interleave(
            torch.arange(len(regions), device=tags.device), torch.tensor(list(map(len, regions)), device=tags.device)
        )
        classes = classification(
            logits.float(), torch.cat(labels), weights, tags[image], real[image], self.tag_share
        )  # fmt: skip
        boxes = regression_loss(regression.float(), torch.cat(labels), torch.cat(deltas), weights)
        return [], OrderedDict(loss_classifier=classes, loss_box_reg=boxes)


def region_weights(regions: Tensor, labels: Tensor, target: dict[str, Tensor]) -> Tensor:
    """Weights (n,) of an image's regions: of an object that of the nearest box, of any other region 1."""
    if not len(target["boxes"]):
        return torch.ones_like(regions[:, 0])
    nearest = iou(regions[None], target["boxes"][None])[0].argmax(dim=1)
    return torch.where(labels > 0, target["weights"][nearest].to(regions), 1.0)


def classification(
    logits: Tensor, labels: Tensor, weights: Tensor, tags: Tensor, real: Tensor, tag_share: float
) -> Tensor:
    """Classification loss of n regions: logits (n, classes + 1); tags (n, t) of their images, `real` or padding."""
    log_p = torch.log_softmax(logits, dim=1)
    of_label = log_p.gather(1, labels[:, None])[:, 0]
    if tag_share:
        of_tags = log_p.gather(1, tags.clamp(min=0)).masked_fill(~real, -torch.inf) + math.log(tag_share)
        either = torch.logsumexp(torch.cat([log_p[:, :1], of_tags], dim=1), dim=1)
        of_label = torch.where(labels > 0, of_label, either)
    return -(weights * of_label).sum() / weights.sum().clamp(min=1e-6)


def regression_loss(regression: Tensor, labels: Tensor, deltas: Tensor, weights: Tensor) -> Tensor:
    """Box regression loss of the regions at objects, by their weights: regression (n, 4 (classes + 1))."""
    rows = torch.nonzero(labels > 0)[:, 0]
    predicted = regression.unflatten(1, (-1, 4))[rows, labels[rows]]
    loss = functional.smooth_l1_loss(predicted, deltas[rows].float(), beta=_BETA, reduction="none").sum(dim=1)
    return (weights[rows] * loss).sum() / weights.sum().clamp(min=1e-6)
