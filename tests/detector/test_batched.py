"""The batched parts against torchvision's own."""

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
def test_targets_equal_torchvisions(counts: list[int]) -> None:
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


@pytest.mark.parametrize("nearby", [0.0, 0.1])
@pytest.mark.parametrize("counts", [[3], [0, 2], [4, 1, 0, 7], [0]])
def test_training_regions_are_as_torchvisions(counts: list[int], nearby: float) -> None:
    """With room for all nothing is left to chance but the order; background is near a box, where there is one."""
    generator = torch.Generator().manual_seed(sum(counts))
    targets = [{"boxes": boxes(n, generator), "labels": torch.randint(1, 5, (n,), generator=generator)} for n in counts]
    proposals = [boxes(30 + 5 * i, generator) for i in range(len(counts))]
    everything = TINY_UNTRAINED.model_copy(update={"sampled_rois": 400, "min_background_iou": nearby})
    plain, fast = build(everything, 4), batch_up(build(everything, 4))
    expected = plain.roi_heads.select_training_samples(proposals, targets)
    found = fast.roi_heads.select_training_samples(proposals, targets)
    for one, other in ((expected, found), (found, expected)):
        for mine, label, move, its, its_label, its_move in zip(
            one[0], one[2], one[3], other[0], other[2], other[3], strict=True
        ):
            for box, name, shift in zip(mine, label, move, strict=True):
                place = int((its - box).abs().sum(dim=1).argmin())
                assert torch.equal(its[place], box)
                assert its_label[place] == name
                if name > 0:
                    torch.testing.assert_close(its_move[place], shift)
    for mine, label, proposed, target in zip(found[0], found[2], proposals, targets, strict=True):
        some = target["boxes"]
        all_of_them = torch.cat([proposed, some])
        overlap = box_iou(all_of_them, some).amax(dim=1) if len(some) else torch.ones(len(proposed))
        assert len(mine) == (overlap >= nearby).sum()
        assert (label == 0).sum() == ((overlap >= nearby) & (overlap < 0.5)).sum() if len(some) else (label == 0).all()


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.3, 0.5, 0.7, 0.9]))
def test_suppression_equals_torchvisions(seed: int, threshold: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.stack([boxes(40, generator) for _ in range(3)])
    scores = torch.linspace(1, 0, 40)
    for row, stays in zip(rows, kept_by_nms(rows, threshold), strict=True):
        assert torch.equal(torch.nonzero(stays)[:, 0], nms(row, scores, threshold).sort().values)


def test_scaling_equals_torchvisions_where_it_enlarges() -> None:
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(3, h, w, generator=generator) for h, w in ((40, 64), (64, 64), (20, 7))]
    targets = [{"boxes": boxes(n, generator)} for n in (2, 0, 1)]
    mine = build(TINY_UNTRAINED, 4).transform
    plain = GeneralizedRCNNTransform(64, 64, mine.image_mean, mine.image_std)
    expected, found = plain(images, [dict(target) for target in targets]), mine(images, targets)
    assert found[0].image_sizes == expected[0].image_sizes
    torch.testing.assert_close(found[0].tensors, expected[0].tensors)
    for one, other in zip(expected[1], found[1], strict=True):
        torch.testing.assert_close(other["boxes"], one["boxes"])


def test_filtered_proposals_equal_torchvisions() -> None:
    generator = torch.Generator().manual_seed(0)
    plain, fast = build(TINY_UNTRAINED, 4).eval(), batch_up(build(TINY_UNTRAINED, 4)).eval()
    proposals = torch.stack([boxes(500, generator) for _ in range(3)])
    scores = torch.randn(1500, 1, generator=generator)
    shapes = [(64, 64), (50, 64), (64, 40)]
    expected, found = (model.rpn.filter_proposals(proposals, scores, shapes, [400, 100]) for model in (plain, fast))
    for one, other, score, own in zip(expected[0], found[0], expected[1], found[1], strict=True):
        keep = (other[:, 2:] > other[:, :2]).all(dim=1)  # torchvision drops boxes without area before, not after
        shared = min(len(one), int(keep.sum()))
        torch.testing.assert_close(other[keep][:shared], one[:shared])
        torch.testing.assert_close(own[keep][:shared], score[:shared])


@pytest.mark.parametrize(("positive", "negative"), [(0, 0), (0, 50), (3, 50), (30, 50), (30, 2), (1, 0)])
def test_samples_are_as_many_as_torchvision_draws(positive: int, negative: int) -> None:
    labels = torch.cat([torch.full((positive,), 2.0), torch.zeros(negative), torch.full((7,), -1.0)])
    labels = labels[torch.randperm(len(labels))]
    drawn, rest = BatchedSampler(16, 0.25)([labels, labels[: len(labels) // 2], torch.zeros(100)])
    assert int(drawn[0].sum()) == min(positive, 4)
    assert int(rest[0].sum()) == min(negative, 16 - min(positive, 4))
    assert (labels[drawn[0]] >= 1).all()
    assert (labels[rest[0]] == 0).all()
    assert int(rest[2].sum()) == 16
    assert [len(mask) for mask in drawn] == [len(labels), len(labels) // 2, 100]
