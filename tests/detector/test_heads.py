"""Losses of the box head: against slow readings of their equations, and against torchvision's where they are equal."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.models.detection.roi_heads import fastrcnn_loss

from helpers import TINY
from pairloc.detector.heads import contrast, nearest, soft_classification, tightness
from pairloc.detector.training import train
from pairloc.formats.reading import read_annotated


@pytest.fixture
def regions() -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and images of regions: half of them background, one class in a single image."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(24, 6, generator=generator)
    labels = torch.randint(1, 4, (24,), generator=generator) * torch.randint(0, 2, (24,), generator=generator)
    image = torch.arange(24) // 6
    return features, labels.where((labels < 3) | (image == 0), labels - 1), image


def test_contrast_is_that_of_a_loop_over_regions(regions: tuple[Tensor, Tensor, Tensor]) -> None:
    features, labels, image = regions
    unit = [(row / row.norm()).tolist() for row in features]
    likeness = [[math.exp(sum(a * b for a, b in zip(i, j, strict=True)) / 0.1) for j in unit] for i in unit]
    losses = []
    for i in range(24):
        partners = [j for j in range(24) if labels[i] == labels[j] > 0 and image[i] != image[j]]
        others = [k for k in range(24) if k != i and not (labels[i] == labels[k] > 0 and image[i] == image[k])]
        if partners:
            total = sum(likeness[i][k] for k in others)
            losses.append(-sum(math.log(likeness[i][j] / total) for j in partners) / len(partners))
    assert 0 < len(losses) < 24
    assert float(contrast(features, labels, image)) == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_contrast_wants_classes_apart_and_says_nothing_of_one_image() -> None:
    labels, image = torch.tensor([1, 2, 0, 1, 2, 0]), torch.tensor([0, 0, 0, 1, 1, 1])
    apart = torch.eye(3).repeat(2, 1)
    assert float(contrast(apart, labels, image)) < 0.01 < float(contrast(apart[[0, 1, 2, 1, 0, 2]], labels, image))
    alone = torch.randn(6, 3, requires_grad=True)
    loss = contrast(alone, labels, torch.zeros(6))
    loss.backward()
    assert float(loss.detach()) == 0 and alone.grad is not None and not alone.grad.any()


def test_a_tight_region_is_an_object_and_a_loose_one_background(regions: tuple[Tensor, Tensor, Tensor]) -> None:
    assert tightness(torch.tensor([0.0, 0.3, 0.6, 0.9, 1.0])).tolist() == pytest.approx([0, 0, 0.5, 1, 1])
    logits, label, _ = regions
    sure = (label > 0).float()
    expected, _ = fastrcnn_loss(logits, torch.zeros(24, 24), [label], [torch.zeros(24, 4)])
    torch.testing.assert_close(soft_classification(logits, label, sure), expected)
    between = soft_classification(logits, label, torch.full((24,), 0.5))
    ends = [soft_classification(logits, label, torch.full((24,), p)) for p in (0.0, 1.0)]
    torch.testing.assert_close(between, sum(ends) / 2)


def test_the_nearest_box_gives_the_label() -> None:
    target = {"boxes": torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5]]), "labels": torch.tensor([3, 7])}
    overlap, label = nearest(torch.tensor([[0.0, 0, 10, 4], [0, 0, 10, 10], [50, 50, 60, 60]]), target)
    assert overlap.tolist() == pytest.approx([0.8, 1, 0]) and label.tolist()[:2] == [7, 3]
    overlap, label = nearest(torch.zeros(2, 4), {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long()})
    assert overlap.tolist() == [0, 0] and label.tolist() == [0, 0]


def test_a_proposer_trains_with_both_losses_and_is_saved_as_any_other(scenes: Path, tmp_path: Path) -> None:
    settings = TINY.model_copy(update={"soft_labels": True, "contrast": 0.5})
    proposer = train(*read_annotated(scenes / "source.json"), settings, tmp_path / "taught", resumable=False)
    assert "loss_contrast" in (tmp_path / "taught" / "curves.jsonl").read_text()
    plain = train(*read_annotated(scenes / "source.json"), TINY, tmp_path / "plain", resumable=False)
    assert proposer.model.state_dict().keys() == plain.model.state_dict().keys()
