"""Faster R-CNN's bookkeeping for all images of a batch at once.

torchvision matches, samples and cuts boxes image by image, some hundred small launches each: on a GPU that, not the
network, decides how long a step takes. These parts do the same on padded tensors; torchvision's are their plain twins.
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

_AT_A_TIME = 1 << 27  # overlaps held


def batch_up(model: FasterRCNN) -> FasterRCNN:
    """Let a Faster R-CNN use these parts; its weights stay where they are."""
    model.rpn.__class__ = BatchedRPN
    model.roi_heads.__class__ = BatchedRoIHeads
    for part in (model.rpn, model.roi_heads):
        sampler = part.fg_bg_sampler
        part.fg_bg_sampler = BatchedSampler(sampler.batch_size_per_image, sampler.positive_fraction)
    return model


class BatchedSampler:
    """Draws a fixed number of boxes an image, a given share of them positive where there are enough."""

    def __init__(self, count: int, positive_fraction: float) -> None:
        self.count, self.positives = count, int(count * positive_fraction)

    def __call__(self, labels: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Labels (n,) an image, 1 and more positive, 0 negative -> masks (n,) of those drawn of either kind."""
        drawn, rest = self.draw(padded(labels, -1.0)[0])
        sizes = [len(entry) for entry in labels]
        return [row[:n] for row, n in zip(drawn, sizes, strict=True)], [
            row[:n] for row, n in zip(rest, sizes, strict=True)
        ]

    def draw(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The same for labels (N, n)."""
        drawn = _draw(labels >= 1, self.positives)
        return drawn, _draw(labels == 0, self.count, already=drawn.sum(dim=1, keepdim=True))


def _draw(allowed: Tensor, most: int, already: Tensor | int = 0) -> Tensor:
    """A mask of the allowed (N, n), evenly at random: at most so many, less those drawn `already` (N, 1)."""
    keys = torch.rand(allowed.shape, device=allowed.device).masked_fill(~allowed, 2.0)
    lowest, place = keys.topk(min(most, allowed.shape[1]), dim=1, largest=False)
    taken = (lowest < 2.0) & (torch.arange(lowest.shape[1], device=keys.device) < most - already)
    return torch.zeros_like(allowed).scatter(1, place, taken)


class BatchedRPN(RegionProposalNetwork):
    """torchvision's region proposal network; all images of a batch have the same anchors."""

    def assign_targets_to_anchors(
        self, anchors: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Labels (A,) and matched boxes (A, 4) of every image's anchors."""
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
        """The best proposals of every image after NMS within each level."""
        count = len(image_shapes)
        scores = objectness.detach().reshape(count, -1)
        top = self._get_top_n_idx(scores, num_anchors_per_level)  # (N, kept)
        scores = scores.gather(1, top).sigmoid()
        boxes = proposals.gather(1, top[..., None].expand(-1, -1, 4))
        limits = torch.tensor([[w, h, w, h] for h, w in image_shapes], dtype=boxes.dtype, device=boxes.device)
        boxes = torch.minimum(boxes.clamp(min=0), limits[:, None])
        first = 0
        for count_of_level in (min(n, self.pre_nms_top_n()) for n in num_anchors_per_level):
            level = slice(first, first + count_of_level)  # its boxes stand best first
            scores[:, level] = scores[:, level].masked_fill(~kept_by_nms(boxes[:, level], self.nms_thresh), -1.0)
            first += count_of_level
        best, place = scores.topk(min(self.post_nms_top_n(), scores.shape[1]), dim=1)
        sizes = (best >= 0).sum(dim=1).tolist()
        boxes = boxes.gather(1, place[..., None].expand(-1, -1, 4))
        return [row[:n] for row, n in zip(boxes, sizes, strict=True)], [
            row[:n] for row, n in zip(best, sizes, strict=True)
        ]


class BackgroundMatcher(Matcher):
    """torchvision's; a box that overlaps no true one by `min_background_iou` is neither an object nor background.

    Where one object of a kind is marked and others are not, what lies elsewhere may be one of them.
    """

    def __init__(self, high: float, low: float, min_background_iou: float) -> None:
        super().__init__(high, low, allow_low_quality_matches=False)
        self.min_background_iou = min_background_iou

    def __call__(self, match_quality_matrix: Tensor) -> Tensor:
        """IoU (G, P) of true boxes and others -> the true box (P,) of each, or what it is instead, below 0."""
        matches: Tensor = super().__call__(match_quality_matrix)
        far = match_quality_matrix.amax(dim=0) < self.min_background_iou
        return matches.masked_fill(far, self.BETWEEN_THRESHOLDS)


class BatchedRoIHeads(RoIHeads):
    """torchvision's region heads."""

    def select_training_samples(
        self, proposals: list[Tensor], targets: list[dict[str, Tensor]] | None
    ) -> tuple[list[Tensor], None, list[Tensor], list[Tensor]]:
        """Boxes to train on, true ones among them, their labels and how they should move."""
        assert targets is not None
        truth, valid_truth = padded([target["boxes"] for target in targets])
        classes, _ = padded([target["labels"] for target in targets])
        boxes, valid = padded(proposals)
        boxes, valid = torch.cat([boxes, truth], dim=1), torch.cat([valid, valid_truth], dim=1)  # (N, P, 4), (N, P)
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
        shifts = self.box_coder.encode_single(truth.gather(1, matched[..., None].expand(-1, -1, 4))[drawn], chosen)
        regions, names, moves = (list(torch.split(column, sizes)) for column in (chosen, labels[drawn], shifts))
        return regions, None, names, moves


class BatchedTransform(GeneralizedRCNNTransform):
    """torchvision's scaling and normalising, for one size of the longer side; scaling down does not alias."""

    def forward(
        self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None
    ) -> tuple[ImageList, list[dict[str, Tensor]] | None]:
        """Images (3, H, W) in 0 ... 1 as one batch, and their boxes at its scale."""
        scaled = [self._scaled(image) for image in images]
        sizes = [(image.shape[1], image.shape[2]) for image in scaled]
        sides = [math.ceil(max(side) / self.size_divisible) * self.size_divisible for side in zip(*sizes, strict=True)]
        like = images[0]
        mean, std = (like.new_tensor(values)[:, None, None] for values in (self.image_mean, self.image_std))
        batch = mean.expand(len(scaled), -1, *sides).contiguous(memory_format=torch.channels_last)
        for row, image in zip(batch, scaled, strict=True):
            row[:, : image.shape[1], : image.shape[2]] = image
        batch = (batch - mean) / std  # what is beside an image is 0
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
    """Greedy non-maximum suppression of rows of boxes (N, P, 4), best first: which of them stay (N, P).

    A box stays if none that stays before it overlaps it by more than the threshold. Starting from all of them and
    applying that rule again and again, the first boxes are right after the first turn, those that depend on them after
    the next; when a turn changes nothing, all are.
    """
    p = boxes.shape[1]
    above = iou(boxes, boxes) > threshold
    above &= torch.ones(p, p, dtype=torch.bool, device=boxes.device).triu(1)  # [i, j]: i stands before j
    hides = above.to(torch.bfloat16 if boxes.is_cuda else torch.float32)
    stays = torch.ones(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    while True:
        then = torch.bmm(stays[:, None].to(hides.dtype), hides)[:, 0] == 0
        if torch.equal(then, stays):
            return stays
        stays = then


def match(
    truth: list[Tensor],
    boxes: Tensor,
    high: float,
    low: float,
    *,
    low_quality: bool = False,
    min_background_iou: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Kind (N, A) of every box (N, A, 4), 1 object, 0 background, -1 neither, and the true box (N, A) it overlaps most.

    `low_quality` also makes objects of the boxes that overlap a true box most, however little. Where there is a true
    box, background overlaps one by `min_background_iou`.
    """
    kinds, places = [], []
    table, valid = padded(truth)  # (N, G, 4), (N, G)
    step = max(1, _AT_A_TIME // max(1, table.shape[1] * boxes.shape[1]))
    for start in range(0, len(boxes), step):
        rows = slice(start, start + step)
        overlap = iou(table[rows], boxes[rows]).masked_fill(~valid[rows, :, None], -1.0)  # (n, G, A)
        best, place = overlap.max(dim=1)
        kind = torch.where(best >= high, 1, torch.where(best < low, 0, -1))
        kind = torch.where((best >= 0) & (best < min_background_iou), -1, kind)  # no true box: -1
        if low_quality:
            most = overlap.amax(dim=2, keepdim=True)
            kind = torch.where(((overlap == most) & valid[rows, :, None]).any(dim=1), 1, kind)
        kinds.append(kind)
        places.append(place)
    return torch.cat(kinds), torch.cat(places)


def padded(parts: list[Tensor], filler: float = 0.0) -> tuple[Tensor, Tensor]:
    """Tensors (n_i, ...) as one (N, n, ...), at least one long, and which entries (N, n) are real."""
    lengths = torch.tensor([len(part) for part in parts])
    whole = pad_sequence(parts, batch_first=True, padding_value=filler)
    if not whole.shape[1]:
        whole = whole.new_full((len(parts), 1, *whole.shape[2:]), filler)
    valid = torch.arange(whole.shape[1]) < lengths[:, None]
    return whole, valid.to(whole.device)
