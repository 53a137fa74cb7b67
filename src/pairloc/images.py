"""Image files: size as shown, how they are stored, whether they are whole. Read without trusting them."""

import struct
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageOps

from pairloc.boxes import Size
from pairloc.io import reason

MOST_PIXELS = 200_000_000  # about 14,000 x 14,000; more is a scanner's sheet or an attack
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_ORIENTATION = 0x0112
# What PIL's plugins raise on damaged files; none of them is an error of ours.
DAMAGE = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, EOFError, struct.error,
    MemoryError, RuntimeError, Image.DecompressionBombError,
)  # fmt: skip


class ImageError(Exception):
    """An image that cannot be used: the kind of finding, and what was found."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says of itself before its body is decoded."""

    stored: Size  # (width, height) of the pixels as they lie in the file
    orientation: int  # EXIF: 1 is upright

    @property
    def rotated(self) -> bool:
        """Whether viewers turn or mirror it."""
        return self.orientation != 1

    @property
    def size(self) -> Size:
        """(width, height) as shown."""
        width, height = self.stored
        return (height, width) if self.orientation >= 5 else (width, height)


def read_header(path: Path, *, deep: bool = False) -> Header:
    """Size and orientation of an image; with `deep` its body is decoded too, to see that it can be."""
    if not path.is_file():
        raise ImageError("missing-image", "the file is not there")
    whole = True
    try:
        whole = _has_its_end(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                width, height = image.size
                if width * height > MOST_PIXELS:
                    raise ImageError("huge-image", f"unpacks to {width} x {height} pixels")
                header = Header((width, height), _orientation(image))
            if deep or not whole:
                _decode(path)
    except Image.DecompressionBombError as error:
        raise ImageError("huge-image", "unpacks to more pixels than any image has") from error
    except PIL.UnidentifiedImageError as error:
        kind, problem = "unreadable-image", "is not an image of a known format"
        raise ImageError(*((kind, problem) if whole else ("truncated-image", "ends early"))) from error
    except DAMAGE as error:
        cut = "truncated" in str(error) or not whole
        raise ImageError(
            "truncated-image" if cut else "unreadable-image", f"cannot be decoded ({reason(error)})"
        ) from error
    return header


def _decode(path: Path) -> None:
    """Unpack a whole image, to see that it can be; check sums first, where the format has them."""
    with Image.open(path, formats=FORMATS) as image:
        image.verify()
    with Image.open(path, formats=FORMATS) as image:
        image.load()


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 where there is none or a damaged one."""
    if image.format == "TIFF":  # PIL turns these by itself
        return 1
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except DAMAGE:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _has_its_end(path: Path) -> bool:
    """Whether the file reaches the mark its format ends with: what does is not truncated, the others are decoded."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(12)
        stream.seek(max(0, size - 4096))
        tail = stream.read()
    if head.startswith(b"\xff\xd8"):  # JPEG; some cameras write on after the mark
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
    """An image upright and RGB. Grey, palette, CMYK, 16-bit and transparent ones included."""
    read_header(path)  # refuses what is missing, no image at all, or would unpack to gigapixels
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as image:
                return _rgb(ImageOps.exif_transpose(image))
    except DAMAGE as error:
        raise ImageError("unreadable-image", f"cannot be decoded ({str(error)[:80]})") from error


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        values = np.asarray(image, dtype=np.float64)
        top = 65535.0 if image.mode != "F" else max(float(values.max(initial=0)), 1.0)
        return Image.fromarray((values * (255.0 / top)).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        whole = image.convert("RGBA")
        ground = Image.new("RGBA", whole.size, "white")
        return Image.alpha_composite(ground, whole).convert("RGB")
    return image.convert("RGB")
