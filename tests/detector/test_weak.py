"""Training on found boxes: the loss against a slow reading, and against torchvision's where nothing is uncertain."""

import math

import pytest
import torch
from torch import Tensor
from torchvision.models.detection.roi_heads import fastrcnn_loss

from helpers import TINY
from pairloc.detector.model import build
from pairloc.detector.weak import classification, learn_weakly, region_weights, regression_loss

CLASSES, REGIONS = 4, 30


@pytest.fixture
def regions() -> dict[str, Tensor]:
    """Random outputs and targets of regions; the first half of them in an image with two tags, the others with one."""
    generator = torch.Generator().manual_seed(0)
    image = (torch.arange(REGIONS) >= REGIONS // 2).long()
    return {
        "logits": torch.randn(REGIONS, CLASSES + 1, generator=generator),
        "regression": torch.randn(REGIONS, 4 * (CLASSES + 1), generator=generator),
        "labels": torch.randint(CLASSES + 1, (REGIONS,), generator=generator),
        "deltas": torch.randn(REGIONS, 4, generator=generator),
        "weights": torch.rand(REGIONS, generator=generator) + 0.1,
        "tags": torch.tensor([[1, 3], [2, 0]])[image],
        "real": torch.tensor([[True, True], [True, False]])[image],
    }


def test_sure_boxes_have_the_loss_of_torchvision(regions: dict[str, Tensor]) -> None:
    logits, regression, labels, deltas = (regions[name] for name in ("logits", "regression", "labels", "deltas"))
    ones = torch.ones(REGIONS)
    expected = fastrcnn_loss(logits, regression, [labels], [deltas])
    found = classification(logits, labels, ones, regions["tags"], regions["real"], 0.0)
    torch.testing.assert_close(found, expected[0])
    torch.testing.assert_close(regression_loss(regression, labels, deltas, ones), expected[1])


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_loss_is_that_of_a_loop_over_regions(regions: dict[str, Tensor], share: float) -> None:
    total, weights = 0.0, 0.0
    for row in range(REGIONS):
        p = regions["logits"][row].softmax(dim=0).tolist()
        label, weight = int(regions["labels"][row]), float(regions["weights"][row])
        likely = p[label]
        if label == 0:
            shown = regions["tags"][row][regions["real"][row]].tolist()
            likely = p[0] + share * sum(p[tag] for tag in shown)
        total -= weight * math.log(likely)
        weights += weight
    found = classification(
        regions["logits"], regions["labels"], regions["weights"], regions["tags"], regions["real"], share
    )  # fmt: skip
    assert float(found) == pytest.approx(total / weights, rel=1e-5)


def test_a_region_at_an_object_has_the_weight_of_its_box() -> None:
    target = {
        "boxes": torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40]]),
        "labels": torch.tensor([1, 2]),
        "weights": torch.tensor([0.2, 0.7]),
    }
    found = torch.tensor([[1.0, 0, 10, 10], [21, 20, 40, 40], [50, 50, 60, 60]])
    torch.testing.assert_close(region_weights(found, torch.tensor([1, 2, 0]), target), torch.tensor([0.2, 0.7, 1.0]))
    nothing = target | {"boxes": torch.zeros(0, 4), "weights": torch.zeros(0)}
    torch.testing.assert_close(region_weights(found, torch.zeros(3, dtype=torch.int64), nothing), torch.ones(3))


def test_a_box_of_weight_zero_teaches_nothing_about_its_class() -> None:
    torch.manual_seed(0)
    model = learn_weakly(build(TINY, CLASSES, pretrained=False), tag_share=1.0).train()
    images = [torch.rand(3, 64, 64), torch.rand(3, 48, 64)]
    gradients = {}
    for weight in (0.0, 1.0):
        targets = [
            {
                "boxes": torch.tensor([[8.0, 8, 40, 40]]),
                "labels": torch.tensor([2]),
                "weights": torch.tensor([weight]),
                "tags": torch.tensor([2]),
            }
        ] * 2
        torch.manual_seed(1)
        losses = model(images, targets)
        assert all(bool(loss.isfinite()) for loss in losses.values())
        model.zero_grad()
        (losses["loss_classifier"] + losses["loss_box_reg"]).backward()
        gradients[weight] = model.roi_heads.box_predictor.bbox_pred.weight.grad
    assert not gradients[0.0].any()
    assert gradients[1.0].any()
