"""The batched operations give the same results as torchvision's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import box_iou, nms

from helpers import TINY
from pairloc.detector.batched import BatchedSampler, batch_up, kept_by_nms
from pairloc.detector.model import build

TINY_UNTRAINED = TINY.model_copy(update={"pretrained": False})


def boxes(n: int, generator: torch.Generator) -> Tensor:
    corner = torch.rand(n, 2, generator=generator) * 40
    return torch.cat([corner, corner + 2 + torch.rand(n, 2, generator=generator) * 30], dim=1)


@pytest.mark.parametrize("counts", [[3], [0, 2], [4, 1, 0, 7], [0]])
def test_anchor_targets_equal_those_of_torchvision(counts: list[int]) -> None:
    generator = torch.Generator().manual_seed(sum(counts))
    truth = [boxes(n, generator) for n in counts]
    anchors = [boxes(400, generator)] * len(counts)
    plain, fast = build(TINY_UNTRAINED, 4), batch_up(build(TINY_UNTRAINED, 4))
    targets = [{"boxes": entry} for entry in truth]
    expected, found = (model.rpn.assign_targets_to_anchors(anchors, targets) for model in (plain, fast))
    for one, other in zip(expected[0], found[0], strict=True):
        assert torch.equal(one, other)
    for kind, one, other in zip(expected[0], expected[1], found[1], strict=True):
        assert torch.equal(one[kind == 1], other[kind == 1])


@pytest.mark.parametrize("min_iou", [0.0, 0.1])
@pytest.mark.parametrize("counts", [[3], [0, 2], [4, 1, 0, 7], [0]])
def test_training_regions_equal_those_of_torchvision(counts: list[int], min_iou: float) -> None:
    """If all regions are sampled, only their order is random; background regions overlap a true box, if any."""
    generator = torch.Generator().manual_seed(sum(counts))
    targets = [{"boxes": boxes(n, generator), "labels": torch.randint(1, 5, (n,), generator=generator)} for n in counts]
    proposals = [boxes(30 + 5 * i, generator) for i in range(len(counts))]
    everything = TINY_UNTRAINED.model_copy(update={"sampled_rois": 400, "min_background_iou": min_iou})
    plain, fast = build(everything, 4), batch_up(build(everything, 4))
    expected = plain.roi_heads.select_training_samples(proposals, targets)
    found = fast.roi_heads.select_training_samples(proposals, targets)
    for one, other in ((expected, found), (found, expected)):
        for regions, labels, deltas, other_regions, other_labels, other_deltas in zip(
            one[0], one[2], one[3], other[0], other[2], other[3], strict=True
        ):
            for box, label, delta in zip(regions, labels, deltas, strict=True):
                index = int((other_regions - box).abs().sum(dim=1).argmin())
                assert torch.equal(other_regions[index], box)
                assert other_labels[index] == label
                if label > 0:
                    torch.testing.assert_close(other_deltas[index], delta)
    for regions, labels, proposed, target in zip(found[0], found[2], proposals, targets, strict=True):
        truth = target["boxes"]
        candidates = torch.cat([proposed, truth])
        overlap = box_iou(candidates, truth).amax(dim=1) if len(truth) else torch.ones(len(proposed))
        assert len(regions) == (overlap >= min_iou).sum()
        background = (overlap >= min_iou) & (overlap < 0.5)
        assert (labels == 0).sum() == background.sum() if len(truth) else (labels == 0).all()


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]))
def test_nms_equals_that_of_torchvision(seed: int, threshold: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.stack([boxes(40, generator) for _ in range(3)])
    scores = torch.linspace(1, 0, 40)
    for row, kept in zip(rows, kept_by_nms(rows, threshold), strict=True):
        assert torch.equal(torch.nonzero(kept)[:, 0], nms(row, scores, threshold).sort().values)


def test_upscaling_equals_that_of_torchvision() -> None:
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(3, h, w, generator=generator) for h, w in ((40, 64), (64, 64), (20, 7))]
    targets = [{"boxes": boxes(n, generator)} for n in (2, 0, 1)]
    fast = build(TINY_UNTRAINED, 4).transform
    plain = GeneralizedRCNNTransform(64, 64, fast.image_mean, fast.image_std)
    expected, found = plain(images, [dict(target) for target in targets]), fast(images, targets)
    assert found[0].image_sizes == expected[0].image_sizes
    torch.testing.assert_close(found[0].tensors, expected[0].tensors)
    for one, other in zip(expected[1], found[1], strict=True):
        torch.testing.assert_close(other["boxes"], one["boxes"])


def test_filtered_proposals_equal_those_of_torchvision() -> None:
    generator = torch.Generator().manual_seed(0)
    plain, fast = build(TINY_UNTRAINED, 4).eval(), batch_up(build(TINY_UNTRAINED, 4)).eval()
    proposals = torch.stack([boxes(500, generator) for _ in range(3)])
    scores = torch.randn(1500, 1, generator=generator)
    shapes = [(64, 64), (50, 64), (64, 40)]
    expected, found = (model.rpn.filter_proposals(proposals, scores, shapes, [400, 100]) for model in (plain, fast))
    for one, other, one_scores, other_scores in zip(expected[0], found[0], expected[1], found[1], strict=True):
        keep = (other[:, 2:] > other[:, :2]).all(dim=1)  # torchvision drops empty boxes before NMS
        shared = min(len(one), int(keep.sum()))
        torch.testing.assert_close(other[keep][:shared], one[:shared])
        torch.testing.assert_close(other_scores[keep][:shared], one_scores[:shared])


@pytest.mark.parametrize(("positive", "negative"), [(0, 0), (0, 50), (3, 50), (30, 50), (30, 2), (1, 0)])
def test_the_sampler_draws_as_many_as_torchvision(positive: int, negative: int) -> None:
    labels = torch.cat([torch.full((positive,), 2.0), torch.zeros(negative), torch.full((7,), -1.0)])
    labels = labels[torch.randperm(len(labels))]
    positives, negatives = BatchedSampler(16, 0.25)([labels, labels[: len(labels) // 2], torch.zeros(100)])
    assert int(positives[0].sum()) == min(positive, 4)
    assert int(negatives[0].sum()) == min(negative, 16 - min(positive, 4))
    assert (labels[positives[0]] >= 1).all()
    assert (labels[negatives[0]] == 0).all()
    assert int(negatives[2].sum()) == 16
    assert [len(mask) for mask in positives] == [len(labels), len(labels) // 2, 100]
