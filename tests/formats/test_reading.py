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


def test_ilsvrc_is_not_taken_for_voc(tmp_path: Path) -> None:
    assert recognise(write_ilsvrc(tmp_path)) == (tmp_path, "ilsvrc")


def test_several_data_sets_in_a_folder_have_to_be_told_apart(tmp_path: Path) -> None:
    write_json(tmp_path / "one.json", coco())
    write_json(tmp_path / "two.json", coco())
    with pytest.raises(InputError, match=r"several data sets \(one.json, two.json\)"):
        read(tmp_path)
    with pytest.raises(InputError, match="2 files that could be coco"):
        read(tmp_path, "coco")


def test_the_users_image_folder_wins(tmp_path: Path) -> None:
    file = write_json(tmp_path / "x.json", coco())
    image_file(tmp_path / "images" / "a.png")
    (tmp_path / "mine").mkdir()
    assert read(file).folder == tmp_path / "images"
    assert read(file, images=tmp_path / "mine").folder == tmp_path / "mine"


@pytest.mark.parametrize(
    ("path", "format", "message"),
    [
        ("none.json", "auto", "no such file or folder"),
        (".", "auto", "no known data set here"),
        (".", "imagenet", "no format 'imagenet'; known are auto"),
    ],
)
def test_bad_calls(tmp_path: Path, path: str, format: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path / path, format)


@pytest.mark.parametrize("format", FORMATS)
def test_the_wrong_format_named_is_one_sentence(tmp_path: Path, format: str) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text('{"x": ["y"')
    with pytest.raises(InputError) as caught:
        read(wrong, format)
    assert str(wrong) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_image_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such image folder"):
        read(write_json(tmp_path / "x.json", coco()), images=tmp_path / "none")
