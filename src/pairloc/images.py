"""Defensive decoding of image files: size, EXIF orientation, truncation, conversion to RGB."""

import struct
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageOps

from pairloc.boxes import Size
from pairloc.io import reason

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_ORIENTATION = 0x0112
# PIL plugins raise all of these for damaged files; none of them indicates a bug in this package.
DECODING_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError, struct.error,
    MemoryError, RuntimeError, Image.DecompressionBombError,
)  # fmt: skip


class ImageError(Exception):
    """Raised for an image that cannot be used; `kind` is a key of `datasets.findings.KINDS`."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Header:
    """Size and orientation of an image, known without decoding its pixels."""

    stored: Size  # (width, height) in the file, before the EXIF rotation
    orientation: int  # EXIF orientation, 1 ... 8; 1 is upright

    @property
    def rotated(self) -> bool:
        """Whether viewers rotate or mirror the image."""
        return self.orientation != 1

    @property
    def size(self) -> Size:
        """(width, height) of the upright image."""
        width, height = self.stored
        return (height, width) if self.orientation >= 5 else (width, height)


def read_header(path: Path, *, deep: bool = False) -> Header:
    """Read size and orientation of an image; `deep` also decodes its pixels to check them.

    Raises an ImageError if the image is missing, unreadable, truncated or too large.
    """
    if not path.is_file():
        raise ImageError("missing-image", "the file does not exist")
    complete = True
    try:
        complete = _has_end_marker(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                header = Header(image.size, _orientation(image))
            if deep or not complete:
                _decode(path)
    except Image.DecompressionBombError as error:
        raise ImageError("huge-image", "decodes to more than 179 million pixels, Pillow's limit") from error
    except PIL.UnidentifiedImageError as error:
        kind, problem = "unreadable-image", "is not an image in a supported format"
        raise ImageError(*((kind, problem) if complete else ("truncated-image", "is truncated"))) from error
    except DECODING_ERRORS as error:
        truncated = "truncated" in str(error) or not complete
        raise ImageError(
            "truncated-image" if truncated else "unreadable-image", f"cannot be decoded ({reason(error)})"
        ) from error
    return header


def _decode(path: Path) -> None:
    """Decode a whole image to check that it works; where the format has checksums, verify them first."""
    with Image.open(path, formats=FORMATS) as image:
        image.verify()
    with Image.open(path, formats=FORMATS) as image:
        image.load()


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 if it is missing or damaged."""
    if image.format == "TIFF":  # PIL already applies the orientation of TIFF files
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except DECODING_ERRORS:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _has_end_marker(path: Path) -> bool:
    """Whether a file contains the end marker, or has the length, of its format; if not, it may be truncated."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(12)
        stream.seek(max(0, size - 4096))
        tail = stream.read()
    if head.startswith(b"\xff\xd8"):  # JPEG; some cameras append data after the marker
        return b"\xff\xd9" in tail
    if head.startswith(b"\x89PNG"):
        return b"IEND" in tail
    if head.startswith(b"RIFF"):  # WebP
        return size >= 8 + int.from_bytes(head[4:8], "little")
    if head.startswith(b"BM"):
        return size >= int.from_bytes(head[2:6], "little")
    if head.startswith(b"GIF8"):
        return tail.rstrip(b"\0").endswith(b"\x3b")
    return True


def open_image(path: Path) -> Image.Image:
    """Decode an image to upright RGB; grey, palette, CMYK, 16-bit and transparent images are converted.

    Raises an ImageError if the image cannot be decoded.
    """
    read_header(path)  # raises for missing files, other file types and decompression bombs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                return _rgb(ImageOps.exif_transpose(image))
    except DECODING_ERRORS as error:
        raise ImageError("unreadable-image", f"cannot be decoded ({str(error)[:80]})") from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        values = np.asarray(image, dtype=np.float64)
        white = 65535.0 if image.mode != "F" else max(float(values.max(initial=0)), 1.0)
        return Image.fromarray((values * (255.0 / white)).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        foreground = image.convert("RGBA")
        background = Image.new("RGBA", foreground.size, "white")
        return Image.alpha_composite(background, foreground).convert("RGB")
    return image.convert("RGB")
