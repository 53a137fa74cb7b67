"""Matching, sampling and NMS of Faster R-CNN for all images of a batch at once.

torchvision does this image by image, with some hundred small kernel launches each; on a GPU they, not the network,
determine the time of a step. These classes compute the same on padded tensors; tests compare them with torchvision's.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection._utils import Matcher
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from pairloc.boxes import iou

_MAX_OVERLAPS = 1 << 27  # IoU values in memory at a time


def batch_up(model: FasterRCNN) -> FasterRCNN:
    """Make a Faster R-CNN use the batched classes, in place; its weights do not change."""
    model.rpn.__class__ = BatchedRPN
    model.roi_heads.__class__ = BatchedRoIHeads
    for part in (model.rpn, model.roi_heads):
        sampler = part.fg_bg_sampler
        part.fg_bg_sampler = BatchedSampler(sampler.batch_size_per_image, sampler.positive_fraction)
    return model


class BatchedSampler:
    """Samples up to `count` boxes per image, of which at most the fraction `positive_fraction` is positive."""

    def __init__(self, count: int, positive_fraction: float) -> None:
        self.count, self.max_positives = count, int(count * positive_fraction)

    def __call__(self, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Labels (n,) of each image -> masks (n,) of the positives (label >= 1) and negatives (label 0) drawn."""
        positives, negatives = self.draw(padded(labels, -1.0)[0])
        sizes = [len(entry) for entry in labels]
        return [row[:n] for row, n in zip(positives, sizes, strict=True)], [
            row[:n] for row, n in zip(negatives, sizes, strict=True)
        ]

    def draw(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Padded labels (N, n) -> masks (N, n) of the positives and negatives drawn."""
        positives = _draw(labels >= 1, self.max_positives)
        return positives, _draw(labels == 0, self.count, already=positives.sum(dim=1, keepdim=True))


def _draw(allowed: Tensor, limit: int, already: Tensor | int = 0) -> Tensor:
    """Draw uniformly from the entries where `allowed` (N, n) is true, at most `limit` - `already` (N, 1) per row."""
    keys = torch.rand(allowed.shape, device=allowed.device).masked_fill(~allowed, 2.0)
    lowest, index = keys.topk(min(limit, allowed.shape[1]), dim=1, largest=False)
    taken = (lowest < 2.0) & (torch.arange(lowest.shape[1], device=keys.device) < limit - already)
    return torch.zeros_like(allowed).scatter(1, index, taken)


class BatchedRPN(RegionProposalNetwork):
    """torchvision's region proposal network on padded tensors; all images of a batch share their anchors."""

    def assign_targets_to_anchors(
        self, anchors: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Assign a label (A,) and a true box (A, 4) to the anchors of every image."""
        matcher = self.proposal_matcher
        labels, matched = match(
            [target["boxes"] for target in targets], anchors[0].expand(len(anchors), -1, -1), matcher.high_threshold,
            matcher.low_threshold, low_quality=True,
        )  # fmt: skip
        boxes, _ = padded([target["boxes"] for target in targets])
        chosen = boxes.gather(1, matched[..., None].expand(-1, -1, 4))
        return list(labels.to(torch.float32)), list(chosen)

    def filter_proposals(
        self,
        proposals: Tensor,
        objectness: Tensor,
        image_shapes: list[tuple[int, int]],
        num_anchors_per_level: list[int],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the top proposals (n, 4) and scores (n,) of every image after NMS within each level."""
        count = len(image_shapes)
        scores = objectness.detach().reshape(count, -1)
        top = self._get_top_n_idx(scores, num_anchors_per_level)  # (N, kept)
        scores = scores.gather(1, top).sigmoid()
        boxes = proposals.gather(1, top[..., None].expand(-1, -1, 4))
        limits = torch.tensor([[w, h, w, h] for h, w in image_shapes], dtype=boxes.dtype, device=boxes.device)
        boxes = torch.minimum(boxes.clamp(min=0), limits[:, None])
        first = 0
        for count_of_level in (min(n, self.pre_nms_top_n()) for n in num_anchors_per_level):
            level = slice(first, first + count_of_level)  # sorted by score, as NMS needs
            scores[:, level] = scores[:, level].masked_fill(~kept_by_nms(boxes[:, level], self.nms_thresh), -1.0)
            first += count_of_level
        best, index = scores.topk(min(self.post_nms_top_n(), scores.shape[1]), dim=1)
        sizes = (best >= 0).sum(dim=1).tolist()
        boxes = boxes.gather(1, index[..., None].expand(-1, -1, 4))
        return [row[:n] for row, n in zip(boxes, sizes, strict=True)], [
            row[:n] for row, n in zip(best, sizes, strict=True)
        ]


class BackgroundMatcher(Matcher):
    """torchvision's matcher, except that a background box needs an IoU of `min_background_iou` with a true box.

    Boxes below that IoU are ignored: if only one object of a class is marked, they may show another one.
    """

    def __init__(self, high: float, low: float, min_background_iou: float) -> None:
        super().__init__(high, low, allow_low_quality_matches=False)
        self.min_background_iou = min_background_iou

    def __call__(self, match_quality_matrix: Tensor) -> Tensor:
        """IoU (G, P) of true boxes and proposals -> index of the matched true box (P,), or a code of `Matcher`."""
        matches: Tensor = super().__call__(match_quality_matrix)
        far = match_quality_matrix.amax(dim=0) < self.min_background_iou
        return matches.masked_fill(far, self.BETWEEN_THRESHOLDS)


class BatchedRoIHeads(RoIHeads):
    """torchvision's RoI heads on padded tensors."""

    def select_training_samples(
        self, proposals: list[Tensor], targets: list[dict[str, Tensor]] | None
    ) -> tuple[list[Tensor], None, list[Tensor], list[Tensor]]:
        """Sample the boxes to train on, true ones included, with their labels and regression targets."""
        assert targets is not None
        true_boxes, true_valid = padded([target["boxes"] for target in targets])
        classes, _ = padded([target["labels"] for target in targets])
        boxes, valid = padded(proposals)
        boxes, valid = torch.cat([boxes, true_boxes], dim=1), torch.cat([valid, true_valid], dim=1)  # (N, P, 4), (N, P)
        matcher = self.proposal_matcher
        kinds, matched = match(
            [target["boxes"] for target in targets], boxes, matcher.high_threshold, matcher.low_threshold,
            min_background_iou=matcher.min_background_iou,
        )  # fmt: skip
        labels = torch.where(kinds == 1, classes.gather(1, matched), kinds.clamp(max=0)).masked_fill(~valid, -1)
        positive, negative = self.fg_bg_sampler.draw(labels)
        drawn = positive | negative
        sizes = drawn.sum(dim=1).tolist()
        chosen = boxes[drawn]
        deltas = self.box_coder.encode_single(true_boxes.gather(1, matched[..., None].expand(-1, -1, 4))[drawn], chosen)
        columns = (list(torch.split(column, sizes)) for column in (chosen, labels[drawn], deltas))
        sampled, sampled_labels, sampled_deltas = columns
        return sampled, None, sampled_labels, sampled_deltas


class BatchedTransform(GeneralizedRCNNTransform):
    """torchvision's scaling and normalisation for one fixed size, with antialiasing when it scales down."""

    def forward(
        self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None
    ) -> tuple[ImageList, list[dict[str, Tensor]] | None]:
        """Combine images (3, H, W) in 0 ... 1 into one padded batch and scale their boxes with them."""
        scaled = [self._scaled(image) for image in images]
        sizes = [(image.shape[1], image.shape[2]) for image in scaled]
        shape = [math.ceil(max(side) / self.size_divisible) * self.size_divisible for side in zip(*sizes, strict=True)]
        like = images[0]
        mean, std = (like.new_tensor(values)[:, None, None] for values in (self.image_mean, self.image_std))
        batch = mean.expand(len(scaled), -1, *shape).contiguous(memory_format=torch.channels_last)
        for row, image in zip(batch, scaled, strict=True):
            row[:, : image.shape[1], : image.shape[2]] = image
        batch = (batch - mean) / std  # the padding holds the mean, so it becomes 0
        if targets is not None:
            ratios = [(s[1] / i.shape[2], s[0] / i.shape[1]) for s, i in zip(sizes, images, strict=True)]
            factors = like.new_tensor(ratios, dtype=torch.float32).repeat(1, 2)
            targets = [target | {"boxes": target["boxes"] * f} for target, f in zip(targets, factors, strict=True)]
        return ImageList(batch, sizes), targets

    def _scaled(self, image: Tensor) -> Tensor:
        factor = min(self.min_size[-1] / min(image.shape[1:]), self.max_size / max(image.shape[1:]))
        return nn.functional.interpolate(
            image[None], scale_factor=factor, mode="bilinear", recompute_scale_factor=True, antialias=factor < 1
        )[0]


def kept_by_nms(boxes: Tensor, threshold: float) -> Tensor:
    """Greedy non-maximum suppression of boxes (N, P, 4) sorted by score -> mask (N, P) of the boxes kept.

    A box is kept if no better box that is kept overlaps it by more than the threshold. Applying this rule to all boxes
    at once, starting with all of them kept, settles at least one more box per iteration; the mask is final once an
    iteration changes nothing.
    """
    p = boxes.shape[1]
    above = iou(boxes, boxes) > threshold
    above &= torch.ones(p, p, dtype=torch.bool, device=boxes.device).triu(1)  # [i, j]: i is better than j
    suppresses = above.to(torch.bfloat16 if boxes.is_cuda else torch.float32)
    kept = torch.ones(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    while True:
        updated = torch.bmm(kept[:, None].to(suppresses.dtype), suppresses)[:, 0] == 0
        if torch.equal(updated, kept):
            return kept
        kept = updated


def match(
    truth: list[Tensor],
    boxes: Tensor,
    high: float,
    low: float,
    *,
    low_quality: bool = False,
    min_background_iou: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Match boxes (N, A, 4) to the true boxes of their images: kinds (N, A) and indices (N, A) of the best true box.

    The kind is 1 for an object (IoU >= `high`), 0 for background (IoU < `low`) and -1 for boxes to ignore. With
    `low_quality` the box with the highest IoU with a true box is an object too, however low that IoU is. If an image
    has a true box, background needs an IoU of at least `min_background_iou` with one.
    """
    kinds, indices = [], []
    table, valid = padded(truth)  # (N, G, 4), (N, G)
    step = max(1, _MAX_OVERLAPS // max(1, table.shape[1] * boxes.shape[1]))
    for start in range(0, len(boxes), step):
        rows = slice(start, start + step)
        overlap = iou(table[rows], boxes[rows]).masked_fill(~valid[rows, :, None], -1.0)  # (n, G, A)
        best, index = overlap.max(dim=1)
        kind = torch.where(best >= high, 1, torch.where(best < low, 0, -1))
        kind = torch.where((best >= 0) & (best < min_background_iou), -1, kind)  # `best` is -1 without true boxes
        if low_quality:
            highest = overlap.amax(dim=2, keepdim=True)
            kind = torch.where(((overlap == highest) & valid[rows, :, None]).any(dim=1), 1, kind)
        kinds.append(kind)
        indices.append(index)
    return torch.cat(kinds), torch.cat(indices)


def padded(parts: list[Tensor], filler: float = 0.0) -> tuple[Tensor, Tensor]:
    """Pad tensors (n_i, ...) to one tensor (N, n, ...) with n >= 1; also return the mask (N, n) of real entries."""
    lengths = torch.tensor([len(part) for part in parts])
    table = pad_sequence(parts, batch_first=True, padding_value=filler)
    if not table.shape[1]:
        table = table.new_full((len(parts), 1, *table.shape[2:]), filler)
    valid = torch.arange(table.shape[1]) < lengths[:, None]
    return table, valid.to(table.device)
