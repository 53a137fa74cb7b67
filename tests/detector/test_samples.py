from pathlib import Path

import torch

from helpers import TINY
from pairloc.detector.samples import Samples, TrainingBatch
from pairloc.formats.reading import read_annotated


def test_boxes_are_mirrored_with_their_image(scenes: Path) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    samples = Samples(dataset, truth, list(range(len(dataset))), TINY)
    mirrored = 0
    for index in range(len(samples)):
        views = []
        for epoch in range(6):
            image, target = samples.sample(epoch * len(samples) + index)
            views.append((image, target["boxes"]))
        plain = torch.from_numpy(truth.of_image(index).boxes).float()
        for _, boxes in views:
            is_plain = torch.equal(boxes, plain)
            back = torch.stack([64 - boxes[:, 2], boxes[:, 1], 64 - boxes[:, 0], boxes[:, 3]], dim=1)
            assert is_plain or torch.allclose(back, plain)
            mirrored += not is_plain
    assert 30 <= mirrored <= 90


def test_a_training_batch_contains_its_samples_unchanged() -> None:
    samples = [
        (torch.randint(0, 256, (3, h, w), dtype=torch.uint8), {"boxes": torch.rand(n, 4), "labels": torch.arange(n)})
        for h, w, n in ((4, 5, 2), (6, 3, 0), (2, 2, 3))
    ]
    images, targets = TrainingBatch(samples).to("cpu")
    for (image, target), unpacked, unpacked_target in zip(samples, images, targets, strict=True):
        torch.testing.assert_close(unpacked, image.float() / 255)
        assert torch.equal(unpacked_target["boxes"], target["boxes"])
        assert torch.equal(unpacked_target["labels"], target["labels"])


def test_boxes_are_clipped_to_the_crop(scenes: Path) -> None:
    dataset, truth = read_annotated(scenes / "source.json")
    settings = TINY.model_copy(update={"crop": 0.5})
    cropped = Samples(dataset, truth, list(range(len(dataset))), settings)
    sizes = set()
    for index in range(2 * len(cropped)):
        image, target = cropped.sample(index)
        _, height, width = image.shape
        sizes.add((height, width))
        assert 32 <= min(height, width) <= max(height, width) <= 64
        assert len(target["boxes"]) == len(target["labels"]) <= len(truth.of_image(index % len(cropped)))
        assert (target["boxes"][:, :2] >= 0).all()
        assert (target["boxes"][:, 2:] <= torch.tensor([width, height])).all()
        assert (target["boxes"][:, 2:] > target["boxes"][:, :2]).all()
    assert len(sizes) > 10
