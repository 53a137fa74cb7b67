from pathlib import Path

import pytest

from helpers import sample
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.formats.writing import writable_formats, write


def nothing() -> ScoredBoxes:
    _, boxes = sample()
    return ScoredBoxes(boxes.image[:0], boxes.label[:0], boxes.boxes[:0], boxes.score[:0])


def test_the_formats_that_are_written() -> None:
    assert writable_formats() == ["voc", "yolo", "csv", "label-studio", "coco", "cvat"]


@pytest.mark.parametrize("format", ["pdf", "folders"])
def test_other_formats_are_refused(tmp_path: Path, format: str) -> None:
    with pytest.raises(InputError, match=f"no format '{format}' to export to; known are voc, yolo, csv, "):
        write(format, tmp_path, *sample())


def test_an_image_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.png: the image is not there"):
        write("yolo", tmp_path, *sample(), tmp_path)


def test_a_size_that_is_needed_and_not_known(tmp_path: Path) -> None:
    unknown = Dataset((Image(1, "a.jpg", None),), ("cat",), ((),))
    with pytest.raises(InputError, match="its size is not known; name the image folder"):
        write("cvat", tmp_path, unknown, nothing())
    with pytest.raises(InputError, match=r"a\.jpg: the file is not there; its size is needed"):
        write("cvat", tmp_path, unknown, nothing(), tmp_path)


@pytest.mark.parametrize("format", ["voc", "yolo"])
def test_two_images_of_one_stem_would_share_a_label_file(tmp_path: Path, format: str) -> None:
    twins = Dataset(tuple(Image(i, f"a.{end}", (9, 9)) for i, end in enumerate(("jpg", "png"))), ("cat",), ((), ()))
    with pytest.raises(InputError, match=r"'a\.jpg' and 'a\.png' would share one label file"):
        write(format, tmp_path, twins, nothing())
