from pathlib import Path

import pytest

from helpers import sample
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.formats.writing import writable_formats, write


def no_boxes() -> ScoredBoxes:
    _, boxes = sample()
    return ScoredBoxes(boxes.image[:0], boxes.label[:0], boxes.boxes[:0], boxes.score[:0])


def test_writable_formats() -> None:
    assert writable_formats() == ["voc", "yolo", "csv", "label-studio", "coco", "cvat"]


@pytest.mark.parametrize("format", ["pdf", "folders"])
def test_other_formats_are_rejected(tmp_path: Path, format: str) -> None:
    with pytest.raises(InputError, match=f"no format '{format}' to export to; choose one of voc, yolo, csv, "):
        write(format, tmp_path, *sample())


def test_a_missing_image_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.png: the image does not exist"):
        write("yolo", tmp_path, *sample(), tmp_path)


def test_a_missing_image_size_is_an_error(tmp_path: Path) -> None:
    unsized = Dataset((Image(1, "a.jpg", None),), ("cat",), ((),))
    with pytest.raises(InputError, match="its size is unknown; pass the image folder"):
        write("cvat", tmp_path, unsized, no_boxes())
    with pytest.raises(InputError, match=r"a\.jpg: the file does not exist; this format needs its size"):
        write("cvat", tmp_path, unsized, no_boxes(), tmp_path)


@pytest.mark.parametrize("format", ["voc", "yolo"])
def test_two_images_with_the_same_stem_are_rejected(tmp_path: Path, format: str) -> None:
    twins = Dataset(tuple(Image(i, f"a.{end}", (9, 9)) for i, end in enumerate(("jpg", "png"))), ("cat",), ((), ()))
    with pytest.raises(InputError, match=r"'a\.jpg' and 'a\.png' would share one label file"):
        write(format, tmp_path, twins, no_boxes())
