import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from helpers import image_file
from pairloc.images import ImageError, read_header


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_that_of_the_upright_image(tmp_path: Path, orientation: int) -> None:
    header = read_header(image_file(tmp_path / "a.jpg", (40, 30), orientation=orientation))
    assert header.stored == (40, 30)
    assert header.size == ((30, 40) if orientation >= 5 else (40, 30))
    assert header.rotated == (orientation > 1)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_size_equals_that_of_the_transposed_image(tmp_path: Path, suffix: str, orientation: int) -> None:
    file = image_file(tmp_path / f"a.{suffix}", (40, 30), orientation=orientation)
    with Image.open(file) as image:
        assert read_header(file).size == ImageOps.exif_transpose(image).size


def test_data_after_the_end_marker_is_ignored(tmp_path: Path) -> None:
    file = image_file(tmp_path / "motion.jpg")
    file.write_bytes(file.read_bytes() + b"video" * 2000)
    assert read_header(file).size == (40, 30)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "gif", "tiff"])
@pytest.mark.parametrize("deep", [False, True])
def test_complete_images_of_every_format_pass(tmp_path: Path, suffix: str, deep: bool) -> None:
    assert read_header(image_file(tmp_path / f"a.{suffix}"), deep=deep).size == (40, 30)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp"])
def test_truncation_is_detected_without_deep(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    Image.effect_noise((300, 300), 80).convert("RGB").save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ImageError) as caught:
        read_header(file)
    assert caught.value.kind == "truncated-image"


def test_deep_detects_damaged_pixels(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.effect_noise((300, 300), 80).save(file)
    content = bytearray(file.read_bytes())
    content[2000:2400] = b"\0" * 400
    file.write_bytes(content)
    assert read_header(file).size == (300, 300)
    with pytest.raises(ImageError) as caught:
        read_header(file, deep=True)
    assert caught.value.kind in ("unreadable-image", "truncated-image")


def gigapixel_png(side: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [15_000, 30_000, 2**31 - 1])
@pytest.mark.parametrize("deep", [False, True])
def test_a_decompression_bomb_is_never_decoded(tmp_path: Path, side: int, deep: bool) -> None:
    file = tmp_path / "bomb.png"
    file.write_bytes(gigapixel_png(side))
    with pytest.raises(ImageError) as caught:
        read_header(file, deep=deep)
    assert caught.value.kind == "huge-image"


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\xff\xd8\xff\xd9", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
)
def test_a_file_that_is_not_an_image_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(ImageError) as caught:
        read_header(tmp_path / "a.jpg")
    assert caught.value.kind == "unreadable-image"


def test_a_missing_image_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ImageError) as caught:
        read_header(tmp_path / "none.jpg")
    assert caught.value.kind == "missing-image"
