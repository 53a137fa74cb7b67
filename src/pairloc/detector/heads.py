"""Two losses of the box head beside torchvision's: labels that say how tight a region is, and contrast across images.

Soft labels. A region of IoU u with its object of class c is not simply c: its label is c with probability q(u) and
background otherwise, where q rises from 0 at IoU 0.3 to 1 at 0.9. So objectness says how tight a region is.

Contrast. Among the regions of a batch with unit features f, one of class c is to be more like those of class c in other
images than like all others, background and the classes beside it included:

    l(i) = - mean over j of its class in other images of  log (exp(f_i f_j / t) / sum over k of exp(f_i f_k / t))

where k runs over all regions but i and those of its class in its own image. (Supervised contrastive learning.)
"""

from collections import OrderedDict

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.roi_heads import fastrcnn_loss

from pairloc.boxes import iou
from pairloc.detector.batched import BatchedRoIHeads, BatchedSampler

_LOOSE, _TIGHT = 0.3, 0.9  # IoU of a region that is background, and of one that is an object
_TEMPERATURE = 0.1
_MOST = 2048  # regions that are compared with each other, at most


def add_losses(model: FasterRCNN, *, soft_labels: bool, contrast: float) -> FasterRCNN:
    """Make a Faster R-CNN train with these losses, in place; its weights do not change."""
    heads = model.roi_heads
    heads.__class__ = TaughtRoIHeads
    heads.soft_labels, heads.contrast = soft_labels, contrast
    sampler = heads.fg_bg_sampler
    if not isinstance(sampler, BatchedSampler):
        heads.fg_bg_sampler = BatchedSampler(sampler.batch_size_per_image, sampler.positive_fraction)
    return model


class TaughtRoIHeads(BatchedRoIHeads):
    """RoI heads with soft labels and contrast in training."""

    soft_labels: bool
    contrast: float

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Detections, or in training the losses."""
        if not self.training:
            found: tuple[list[dict[str, Tensor]], dict[str, Tensor]] = super().forward(
                features, proposals, image_shapes, targets
            )
            return found
        assert targets is not None
        regions, _, labels, deltas = self.select_training_samples(proposals, targets)
        described = self.box_head(self.box_roi_pool(features, regions, image_shapes))
        logits, regression = self.box_predictor(described)
        classes, boxes = fastrcnn_loss(logits.float(), regression.float(), labels, deltas)
        losses = OrderedDict(loss_classifier=classes, loss_box_reg=boxes)
        if self.soft_labels:
            matched = [nearest(*entry) for entry in zip(regions, targets, strict=True)]
            overlap, label = (torch.cat(column) for column in zip(*matched, strict=True))
            losses["loss_classifier"] = soft_classification(logits.float(), label, tightness(overlap))
        if self.contrast:
            image = torch.cat([torch.full_like(entry, number) for number, entry in enumerate(labels)])
            losses["loss_contrast"] = self.contrast * contrast(described.float(), torch.cat(labels), image)
        return [], losses


def nearest(regions: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The highest IoU (n,) of an image's regions with a true box, and the label (n,) of that box."""
    if not len(target["boxes"]):
        return regions.new_zeros(len(regions)), target["labels"].new_zeros(len(regions))
    overlap, index = iou(regions[None], target["boxes"][None])[0].max(dim=1)
    return overlap, target["labels"][index]


def tightness(overlap: Tensor) -> Tensor:
    """Probability (n,) that a region of that IoU with its object shows it, and not background."""
    return ((overlap - _LOOSE) / (_TIGHT - _LOOSE)).clamp(0, 1)


def soft_classification(logits: Tensor, label: Tensor, probability: Tensor) -> Tensor:
    """Cross-entropy of n regions that show their label with a probability (n,), and background otherwise."""
    log_p = torch.log_softmax(logits, dim=1)
    of_label = log_p.gather(1, label[:, None])[:, 0]
    return -(probability * of_label + (1 - probability) * log_p[:, 0]).mean()


def contrast(features: Tensor, labels: Tensor, image: Tensor) -> Tensor:
    """Mean of the loss above over the n regions that show an object which another image shows too; 0 without any."""
    some = torch.randperm(len(labels), device=labels.device)[:_MOST]
    features, labels, image = functional.normalize(features[some], dim=1), labels[some], image[some]
    alike = (labels[:, None] == labels) & (labels > 0)[:, None]
    same_image = image[:, None] == image
    scores = (features @ features.T / _TEMPERATURE).masked_fill(alike & same_image, -torch.inf)
    scores = scores.masked_fill(torch.eye(len(labels), dtype=torch.bool, device=labels.device), -torch.inf)
    log_p = torch.log_softmax(scores, dim=1)
    wanted = alike & ~same_image
    count = wanted.sum(dim=1)
    total = log_p.masked_fill(~wanted, 0).sum(dim=1) / count.clamp(min=1)
    shown = count > 0
    return -total[shown].mean() if shown.any() else features.sum() * 0
