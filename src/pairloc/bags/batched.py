"""Faster R-CNN's bookkeeping for all images of a batch at once.

torchvision matches, samples and cuts boxes image by image, some hundred small launches each: on a GPU that, not the
network, decides how long a step takes. These parts do the same on padded tensors; torchvision's are their plain twins.
"""

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.ops import batched_nms

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
        table, _ = padded(labels, -1.0)  # (N, n)
        positive, negative = table >= 1, table == 0
        drawn = _draw(positive, torch.full_like(positive.sum(dim=1), self.positives))
        rest = _draw(negative, self.count - drawn.sum(dim=1))
        sizes = [len(entry) for entry in labels]
        return [row[:n] for row, n in zip(drawn, sizes, strict=True)], [
            row[:n] for row, n in zip(rest, sizes, strict=True)
        ]


def _draw(allowed: Tensor, count: Tensor) -> Tensor:
    """A mask of at most `count` (N,) of the allowed (N, n), evenly at random."""
    keys = torch.rand(allowed.shape, device=allowed.device).masked_fill(~allowed, 2.0)
    most = min(int(count.max()) if len(count) else 0, allowed.shape[1])
    lowest, place = keys.topk(most, dim=1, largest=False)
    taken = (lowest < 2.0) & (torch.arange(most, device=keys.device) < count[:, None])
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
        level = torch.cat([torch.full((n,), i, device=scores.device) for i, n in enumerate(num_anchors_per_level)])
        top = self._get_top_n_idx(scores, num_anchors_per_level)  # (N, kept)
        scores, levels = scores.gather(1, top).sigmoid(), level[top]
        boxes = proposals.gather(1, top[..., None].expand(-1, -1, 4))
        limits = torch.tensor([[w, h, w, h] for h, w in image_shapes], dtype=boxes.dtype, device=boxes.device)
        boxes = torch.minimum(boxes.clamp(min=0), limits[:, None])
        found, sure = [], []
        for mine, score, of_level in zip(boxes, scores, levels, strict=True):
            kept = batched_nms(mine, score, of_level, self.nms_thresh)[: self.post_nms_top_n()]
            found.append(mine[kept])
            sure.append(score[kept])
        return found, sure


class BatchedRoIHeads(RoIHeads):
    """torchvision's region heads."""

    def assign_targets_to_proposals(
        self, proposals: list[Tensor], gt_boxes: list[Tensor], gt_labels: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The place of the matched box (P,) and the label (P,) of every image's proposals."""
        matcher = self.proposal_matcher
        table, _ = padded(proposals)
        kinds, matched = match(gt_boxes, table, matcher.high_threshold, matcher.low_threshold, low_quality=False)
        labels, _ = padded(gt_labels, 0)
        chosen = labels.gather(1, matched)
        chosen = torch.where(kinds == 1, chosen, torch.where(kinds == 0, 0, -1)).to(torch.int64)
        sizes = [len(entry) for entry in proposals]
        return (
            [row[:n] for row, n in zip(matched, sizes, strict=True)],
            [row[:n] for row, n in zip(chosen, sizes, strict=True)],
        )


def match(truth: list[Tensor], boxes: Tensor, high: float, low: float, *, low_quality: bool) -> tuple[Tensor, Tensor]:
    """Kind (N, A) of every box (N, A, 4), 1 object, 0 background, -1 neither, and the true box (N, A) it overlaps most.

    `low_quality` also makes objects of the boxes that overlap a true box most, however little.
    """
    kinds, places = [], []
    table, valid = padded(truth)  # (N, G, 4), (N, G)
    step = max(1, _AT_A_TIME // max(1, table.shape[1] * boxes.shape[1]))
    for start in range(0, len(boxes), step):
        rows = slice(start, start + step)
        overlap = pair_iou(table[rows], boxes[rows]).masked_fill(~valid[rows, :, None], -1.0)  # (n, G, A)
        best, place = overlap.max(dim=1)
        kind = torch.where(best >= high, 1, torch.where(best < low, 0, -1))
        if low_quality:
            most = overlap.amax(dim=2, keepdim=True)
            kind = torch.where(((overlap == most) & valid[rows, :, None]).any(dim=1), 1, kind)
        kinds.append(kind)
        places.append(place)
    return torch.cat(kinds), torch.cat(places)


def pair_iou(a: Tensor, b: Tensor) -> Tensor:
    """IoU of all pairs: (n, G, 4), (n, A, 4) -> (n, G, A)."""
    low = torch.maximum(a[:, :, None, :2], b[:, None, :, :2])
    high = torch.minimum(a[:, :, None, 2:], b[:, None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=3)
    area_a, area_b = ((x[..., 2] - x[..., 0]) * (x[..., 3] - x[..., 1]) for x in (a, b))
    return shared / (area_a[:, :, None] + area_b[:, None] - shared)


def padded(parts: list[Tensor], filler: float = 0.0) -> tuple[Tensor, Tensor]:
    """Tensors (n_i, ...) as one (N, n, ...), at least one long, and which entries (N, n) are real."""
    lengths = torch.tensor([len(part) for part in parts])
    whole = pad_sequence(parts, batch_first=True, padding_value=filler)
    if not whole.shape[1]:
        whole = whole.new_full((len(parts), 1, *whole.shape[2:]), filler)
    valid = torch.arange(whole.shape[1]) < lengths[:, None]
    return whole, valid.to(whole.device)
