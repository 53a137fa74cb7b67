from pathlib import Path

import pytest

from helpers import picture
from pairloc.data import read
from pairloc.errors import InputError


def test_the_folder_is_the_tag(tmp_path: Path) -> None:
    for name in ("cat/1.png", "hot dog/1.png", "hot dog/deep/2.jpg"):
        picture(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").write_text("x")
    dataset = read(tmp_path)
    assert {image.file: dataset.names(index) for index, image in enumerate(dataset.images)} == {
        "cat/1.png": ("cat",),
        "hot dog/1.png": ("hot dog",),
        "hot dog/deep/2.jpg": ("hot dog",),
    }
    assert dataset.folder == tmp_path


def test_one_class_needs_the_format_named(tmp_path: Path) -> None:
    picture(tmp_path / "cat" / "1.png")
    with pytest.raises(InputError, match="no known data set here"):
        read(tmp_path)
    assert read(tmp_path, "folders").classes == ("cat",)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no image"):
        read(tmp_path, "folders")
