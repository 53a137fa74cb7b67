from pathlib import Path

import numpy as np
import pytest

from helpers import image_file, sample, voc_xml
from pairloc.errors import InputError
from pairloc.formats import read, write
from pairloc.formats.reading import read_annotated
from pairloc.io import read_xml


def write_voc(root: Path) -> Path:
    annotations = root / "Annotations"
    annotations.mkdir(parents=True)
    (annotations / "a.xml").write_text(voc_xml("a.jpg", ("hot dog", 1, 1, 40, 30), ("cat", 5, 6, 7, 8)))
    (annotations / "b 1.xml").write_text(voc_xml("wrong name.jpg", ("cat", 5, 6, 7, 8)))
    image_file(root / "JPEGImages" / "a.jpg")
    image_file(root / "JPEGImages" / "b 1.png")
    sets = root / "ImageSets" / "Main"
    sets.mkdir(parents=True)
    (sets / "train.txt").write_text("a  1\n")
    (sets / "spaced.txt").write_text("b 1\n")
    return root


def test_corners_are_one_based_and_inclusive(tmp_path: Path) -> None:
    dataset, truth = read_annotated(write_voc(tmp_path))
    assert dataset.classes == ("hot dog", "cat")
    assert [image.file for image in dataset.images] == ["a.jpg", "b 1.png"]
    np.testing.assert_array_equal(truth.boxes, [[0, 0, 40, 30], [4, 5, 7, 8], [4, 5, 7, 8]])


def test_a_devkit_with_one_year_and_an_image_set(tmp_path: Path) -> None:
    root = write_voc(tmp_path / "VOC2007")
    assert len(read(tmp_path)) == 2
    assert [image.file for image in read(root / "ImageSets/Main/train.txt").images] == ["a.jpg"]
    assert [image.file for image in read(root / "ImageSets/Main/spaced.txt").images] == ["b 1.png"]


def test_difficult_objects_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "Annotations").mkdir()
    xml = voc_xml("a.jpg", ("cat", 1, 1, 4, 4)).replace("</name>", "</name><difficult>1</difficult>")
    (tmp_path / "Annotations" / "a.xml").write_text(xml)
    dataset, truth = read_annotated(tmp_path, "voc")
    assert truth.ignored.tolist() == [True]
    assert dataset.tags == ((),)


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("", "is empty"),
        ("<annotation><object>", "not valid XML"),
        (voc_xml("a.jpg", ("", 1, 1, 4, 4)), "object 1: the class name is ''"),
        (voc_xml("a.jpg", ("cat", 1, 1, 4, 4)).replace("<ymax>4", "<ymax>four"), "needs four numbers"),
        (voc_xml("a.jpg", ("cat", 9, 1, 4, 4)), "negative width"),
        (voc_xml("../../a.jpg", ("cat", 1, 1, 4, 4)), "use names below"),
        ("<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><annotation/>", "has a DTD"),
    ],
)
def test_bad_input_names_the_file(tmp_path: Path, xml: str, message: str) -> None:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(xml)
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path)
    assert "a.xml" in str(caught.value)


def test_another_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no folder 'Annotations'"):
        read(tmp_path, "voc")


def test_torchvision_reads_voc(tmp_path: Path) -> None:
    from torchvision.datasets import VOCDetection

    dataset, boxes = sample()
    write("voc", tmp_path, dataset, boxes)
    parsed = VOCDetection.parse_voc_xml(read_xml(tmp_path / "Annotations" / "a.xml"))["annotation"]
    assert parsed["size"] == {"width": "40", "height": "30", "depth": "3"}
    assert [thing["name"] for thing in parsed["object"]] == ["hot dog", "cat"]
    corners = [[int(thing["bndbox"][side]) for side in ("xmin", "ymin", "xmax", "ymax")] for thing in parsed["object"]]
    np.testing.assert_array_equal(corners, [[2, 3, 11, 12], [1, 1, 40, 30]])
    assert parsed["object"][0]["score"] == "0.5"
