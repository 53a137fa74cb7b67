from pathlib import Path

import pytest

from helpers import coco, image_file, write_json
from pairloc.errors import InputError
from pairloc.formats import read


def test_the_folder_name_is_the_tag(tmp_path: Path) -> None:
    for name in ("cat/1.png", "hot dog/1.png", "hot dog/deep/2.jpg"):
        image_file(tmp_path / name)
    (tmp_path / "cat" / "notes.txt").write_text("x")
    dataset = read(tmp_path)
    assert {image.file: dataset.names(index) for index, image in enumerate(dataset.images)} == {
        "cat/1.png": ("cat",),
        "hot dog/1.png": ("hot dog",),
        "hot dog/deep/2.jpg": ("hot dog",),
    }
    assert dataset.folder == tmp_path


def test_a_single_class_folder_needs_an_explicit_format(tmp_path: Path) -> None:
    image_file(tmp_path / "cat" / "1.png")
    with pytest.raises(InputError, match="not recognised as a data set"):
        read(tmp_path)
    assert read(tmp_path, "folders").classes == ("cat",)


def test_an_empty_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no image"):
        read(tmp_path, "folders")


def test_an_annotated_data_set_is_not_read_as_class_folders(tmp_path: Path) -> None:
    for name in ("train2017/1.png", "val2017/2.png", "other/3.png"):
        image_file(tmp_path / name)
    write_json(tmp_path / "annotations" / "instances_val2017.json", coco())
    with pytest.raises(InputError, match=r"contains annotations in subfolders \(annotations/instances_val2017.json\)"):
        read(tmp_path)


def test_linked_folders_are_followed_once_and_unsupported_formats_reported(tmp_path: Path) -> None:
    image_file(tmp_path / "elsewhere" / "1.png")
    root = tmp_path / "root"
    image_file(root / "dog" / "2.png")
    (root / "cat").symlink_to(tmp_path / "elsewhere")
    (root / "dog" / "loop").symlink_to(root / "dog")
    assert sorted(image.file for image in read(root).images) == ["cat/1.png", "dog/2.png"]
    (root / "dog" / "3.HEIC").write_bytes(b"x")
    with pytest.raises(InputError, match="convert it to JPEG"):
        read(root)
