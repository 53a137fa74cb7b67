from pathlib import Path

import numpy as np
import pytest

from helpers import image_file
from pairloc.errors import InputError
from pairloc.formats import read
from pairloc.formats.reading import read_annotated, read_boxes

YAML = "path: .\ntrain: images/train\nnames:\n  0: hot dog\n  1: no\n"


def write_yolo(root: Path, labels: str, yaml: str = YAML) -> Path:
    image_file(root / "images" / "train" / "a b.png", (40, 20))
    (root / "labels" / "train").mkdir(parents=True)
    (root / "labels" / "train" / "a b.txt").write_text(labels)
    (root / "data.yaml").write_text(yaml)
    return root


def test_relative_coordinates_become_pixels_and_a_class_named_no_is_kept(tmp_path: Path) -> None:
    root = write_yolo(tmp_path, "0 0.5 0.5 0.5 0.5\n1 0.25 0.25 0.5 0.5\n")
    dataset, truth = read_annotated(root)
    assert dataset.classes == ("hot dog", "no")
    assert dataset.class_ids == (0, 1)
    assert [(image.file, image.size) for image in dataset.images] == [("train/a b.png", (40, 20))]
    np.testing.assert_allclose(truth.boxes, [[10, 5, 30, 15], [0, 0, 20, 10]])


def test_scores_and_polygons(tmp_path: Path) -> None:
    _, boxes = read_boxes(write_yolo(tmp_path, "0 0.5 0.5 0.5 0.5 0.75\n1 0.1 0.1 0.5 0.2 0.3 0.6\n"))
    np.testing.assert_allclose(boxes.boxes, [[10, 5, 30, 15], [4, 2, 20, 12]])
    np.testing.assert_array_equal(boxes.score, [0.75, np.nan])


@pytest.mark.parametrize("labels", ["", "\n"])
def test_an_empty_label_file_is_an_image_without_objects(tmp_path: Path, labels: str) -> None:
    root = write_yolo(tmp_path, labels)
    if labels:
        (root / "labels" / "train" / "a b.txt").unlink()
    assert read(root).tags == ((),)


@pytest.mark.parametrize(
    "yaml",
    [
        "train: ../images/train\nnames: [hot dog, cat]\n",
        "path: /home/somebody/data\ntrain: images/train\nval: images/train\nnames: [hot dog, cat]\n",
        "train: list.txt\nnames: [hot dog, cat]\n",
        "train: [images/train]\nnames: [hot dog, cat]\n",
        "train: /home/me/data/images/train\ntest: ../test/images\nnames: [hot dog, cat]\n",
    ],
)
def test_paths_written_by_other_programs(tmp_path: Path, yaml: str) -> None:
    root = write_yolo(tmp_path, "0 0.5 0.5 0.5 0.5\n", yaml)
    (root / "list.txt").write_text("./images/train/a b.png\n")
    dataset = read(root)
    assert [image.file for image in dataset.images] == ["train/a b.png"]
    assert dataset.tags == ((0,),)


@pytest.mark.parametrize(
    ("labels", "yaml", "message"),
    [
        ("0 0.5 0.5 0.5\n", YAML, "line 1: is '0 0.5 0.5 0.5'"),
        ("\n0 a b c d\n", YAML, "line 2"),
        ("7 0.5 0.5 0.5 0.5\n", YAML, "class '7' is not in 'names' of data.yaml"),
        ("0 nan 0.5 0.5 0.5\n", YAML, "not finite"),
        ("0 0.5 0.5 -0.5 0.5\n", YAML, "negative width"),
        ("", "names: [", "not valid YAML"),
        ("", "a: &x [1]\nb: *x\nnames: [a]", "aliases are not allowed"),
        ("", "just text", "no keys 'names'"),
        ("", "names: {a: b}\ntrain: images/train", "'names' is a dict of 1"),
        ("", "names: [a]\ntrain: {x: y}", "train: is a dict of 1"),
        ("", "names: [a]\ntrain: /etc", "contains no images"),
        ("", "names: [a]\ntrain: ../../..", "contains no images"),
        ("", "names: [a]\ntrain: list.txt", "points outside|use names below"),
    ],
)
def test_bad_input_names_file_and_line(tmp_path: Path, labels: str, yaml: str, message: str) -> None:
    root = write_yolo(tmp_path / "in", labels, yaml)
    (root / "list.txt").write_text("../../etc/passwd.png\n")
    with pytest.raises(InputError, match=message) as caught:
        read(root)
    assert str(root) in str(caught.value)


def test_a_missing_image_is_reported(tmp_path: Path) -> None:
    root = write_yolo(tmp_path, "", "names: [a]\ntrain: list.txt")
    (root / "list.txt").write_text("images/none.png\n")
    with pytest.raises(InputError, match=r"none\.png: the file does not exist"):
        read(root)


def test_an_absolute_image_folder_and_labels_without_an_image(tmp_path: Path) -> None:
    root = write_yolo(tmp_path, "0 0.5 0.5 0.5 0.5\n")
    dataset, truth = read_annotated(root, images=root.absolute())
    assert len(truth) == 1
    assert [image.file for image in dataset.images] == ["images/train/a b.png"]
    (root / "labels" / "train" / "orphan.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    with pytest.raises(InputError, match=r"orphan.txt: there is no image"):
        read(root)
