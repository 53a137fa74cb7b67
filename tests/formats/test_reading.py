from pathlib import Path

import pytest

from helpers import coco, image_file, sample, write_ilsvrc, write_images, write_json
from pairloc.errors import InputError
from pairloc.formats import FORMATS, read, write
from pairloc.formats.reading import recognise
from pairloc.formats.writing import writable_formats


@pytest.mark.parametrize("format", writable_formats())
def test_every_format_is_recognised_from_its_folder(tmp_path: Path, format: str) -> None:
    dataset, boxes = sample()
    images = write_images(tmp_path / "image_files", dataset)
    out = tmp_path / "out"
    out.mkdir()
    write(format, out, dataset, boxes, images)
    assert recognise(out)[1] == format
    assert sorted(read(out).classes) == sorted(dataset.classes)


def test_ilsvrc_is_not_recognised_as_voc(tmp_path: Path) -> None:
    assert recognise(write_ilsvrc(tmp_path)) == (tmp_path, "ilsvrc")


def test_a_folder_with_several_data_sets_is_rejected(tmp_path: Path) -> None:
    write_json(tmp_path / "one.json", coco())
    write_json(tmp_path / "two.json", coco())
    with pytest.raises(InputError, match=r"several data sets \(one.json, two.json\)"):
        read(tmp_path)
    with pytest.raises(InputError, match="2 files that could be coco"):
        read(tmp_path, "coco")


def test_the_image_folder_of_the_user_has_priority(tmp_path: Path) -> None:
    file = write_json(tmp_path / "x.json", coco())
    image_file(tmp_path / "images" / "a.png")
    (tmp_path / "other").mkdir()
    assert read(file).folder == tmp_path / "images"
    assert read(file, images=tmp_path / "other").folder == tmp_path / "other"


@pytest.mark.parametrize(
    ("path", "format", "message"),
    [
        ("none.json", "auto", "no such file or folder"),
        (".", "auto", "not recognised as a data set"),
        (".", "imagenet", "no format 'imagenet'; choose one of auto"),
    ],
)
def test_bad_arguments_are_rejected(tmp_path: Path, path: str, format: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path / path, format)


@pytest.mark.parametrize("format", FORMATS)
def test_a_wrong_format_gives_a_one_line_error(tmp_path: Path, format: str) -> None:
    file = tmp_path / "wrong"
    file.write_text('{"x": ["y"')
    with pytest.raises(InputError) as caught:
        read(file, format)
    assert str(file) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_image_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such image folder"):
        read(write_json(tmp_path / "x.json", coco()), images=tmp_path / "none")
