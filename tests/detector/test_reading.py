from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from helpers import image_file
from pairloc import platform
from pairloc.detector.reading import load_image, worker_count
from pairloc.images import ImageError

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "I;16", "YCbCr"])
def test_every_mode_is_converted_to_rgb(tmp_path: Path, mode: str) -> None:
    file = tmp_path / ("a.jpg" if mode in ("CMYK", "YCbCr") else "a.png")
    if mode == "I;16":
        Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257).save(file)
    else:
        Image.fromarray(PIXELS).convert(mode).save(file)
    loaded = load_image(file)
    assert loaded.shape == (3, 20, 30)
    assert loaded.dtype == torch.uint8
    if mode in ("L", "I;16"):
        expected = PIXELS[..., 0] if mode == "I;16" else np.asarray(Image.fromarray(PIXELS).convert("L"))
        np.testing.assert_array_equal(loaded[0].numpy(), expected)
    if mode == "RGB":
        np.testing.assert_array_equal(loaded.permute(1, 2, 0).numpy(), PIXELS)


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "a.png")
    assert (load_image(tmp_path / "a.png") == 255).all()


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    file = image_file(tmp_path / "a.png", (40, 30), orientation=orientation)
    with Image.open(file) as shown:
        expected = np.asarray(ImageOps.exif_transpose(shown).convert("RGB"))
    np.testing.assert_array_equal(load_image(file).permute(1, 2, 0).numpy(), expected)


def test_an_unreadable_file_raises_an_image_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("x")
    with pytest.raises(ImageError):
        load_image(tmp_path / "a.png")


def test_shared_memory_limits_the_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [image_file(tmp_path / f"{i}.png", (40, 20)) for i in range(40)] + [tmp_path / "missing.png"]
    two_groups = 2 * 8 * 3 * 40 * 20
    for room, expected in ((0, 0), (two_groups - 1, 0), (3 * two_groups, 3), (100 * two_groups, 5)):
        monkeypatch.setattr(platform, "room_for_tensors", lambda room=room: room)
        assert worker_count(files, 8, 5) == expected
        assert worker_count(files, 8, 0) == worker_count([], 8, 5) == 0
