from pathlib import Path

import pytest
import torch
from torchvision.ops import box_iou

from pairloc.detector.model import Proposer
from pairloc.detector.propose import ImageFeatures, best_boxes, describe, objectness, propose
from pairloc.weights import weights_folder


@pytest.mark.parametrize("shape", [(1, 1), (3, 400), (400, 3), (64, 64), (50, 90)])
def test_boxes_lie_inside_images_of_any_shape(proposer: Path, shape: tuple[int, int]) -> None:
    model = Proposer.load(proposer).model
    (boxes,) = propose(model, [torch.rand(3, *shape)], 20, 0.7)
    assert len(boxes) <= 20
    assert (boxes >= 0).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert (boxes[:, [0, 2]] <= shape[1] + 1e-3).all()
    assert (boxes[:, [1, 3]] <= shape[0] + 1e-3).all()
    overlaps = box_iou(boxes, boxes).fill_diagonal_(0)
    assert not len(boxes) or overlaps.max() <= 0.7 + 1e-4


def test_proposals_do_not_depend_on_the_batch(proposer: Path) -> None:
    model = Proposer.load(proposer).model
    images = [torch.rand(3, 64, 64), torch.rand(3, 64, 64)]
    together = ImageFeatures(model, images)
    alone = ImageFeatures(model, images[:1])
    boxes = best_boxes(alone, 10, 0.7)
    torch.testing.assert_close(best_boxes(together, 10, 0.7)[0], boxes[0], atol=1e-2, rtol=1e-3)
    described = describe(together, [boxes[0], torch.tensor([[0.0, 0.0, 64.0, 64.0]])])
    torch.testing.assert_close(described[1][: len(boxes[0])], describe(alone, boxes)[1], atol=1e-3, rtol=1e-3)
    assert described[1].shape == (len(boxes[0]) + 1, 32)


def test_objectness_is_the_logit_of_the_foreground() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64)
    p = 1 - logits.softmax(dim=1)[:, 0]
    torch.testing.assert_close(objectness(logits), torch.log(p / (1 - p)))


def test_as_many_regions_are_proposed_as_boxes_need() -> None:
    """Asked for 300 boxes, the region proposal network gives more than the 300 regions that 100 boxes need."""
    model = Proposer.load(weights_folder("coco63") / "proposer").model
    image = torch.rand(3, 320, 320, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        seen = ImageFeatures(model, [image])
        assert len(best_boxes(seen, 100, 0.7)[0]) == 100
        assert len(best_boxes(seen, 300, 0.7)[0]) > 200
        assert len(seen.regions(900)[0]) > 300
