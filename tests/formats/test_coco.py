from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO

from helpers import coco, sample, write_json
from pairloc.errors import InputError
from pairloc.formats import read, write
from pairloc.formats.reading import read_annotated, read_boxes


def test_images_classes_tags_and_boxes(tmp_path: Path) -> None:
    dataset, truth = read_annotated(write_json(tmp_path / "x.json", coco()))
    assert [(image.id, image.file, image.size) for image in dataset.images] == [
        (1, "a.png", (40, 30)),
        (2, "b.png", (40, 30)),
    ]
    assert dataset.classes == ("hot dog", "cat")
    assert dataset.class_ids == (5, 9)
    assert dataset.tags == ((0,), (1,))
    assert dataset.positives == ((0,), (1,))
    np.testing.assert_array_equal(truth.boxes, [[1, 2, 11, 12], [0, 0, 40, 30]])
    np.testing.assert_array_equal(truth.label, [0, 1])


def test_images_without_annotations_have_no_tags(tmp_path: Path) -> None:
    dataset = read(write_json(tmp_path / "x.json", coco(annotations=[])))
    assert dataset.tags == ((), ())


@pytest.mark.parametrize("key", ["classes", "labels"])
def test_tags_by_name_need_no_categories(tmp_path: Path, key: str) -> None:
    images = [{"id": 1, "file_name": "a.png", key: ["hot dog", "cat"]}, {"id": 2, "file_name": "b.png", key: ["cat"]}]
    dataset = read(write_json(tmp_path / "x.json", {"images": images}))
    assert [dataset.names(index) for index in range(2)] == [("hot dog", "cat"), ("cat",)]
    assert dataset.images[0].size is None


def test_tags_by_category_id_and_annotations_without_a_box(tmp_path: Path) -> None:
    images = [{"id": "a-1", "file_name": "a.png", "labels": [5]}, {"id": "b-2", "file_name": "b.png"}]
    annotations = [{"id": "x", "image_id": "b-2", "category_id": 9}]
    dataset, truth = read_annotated(write_json(tmp_path / "x.json", coco(images=images, annotations=annotations)))
    assert dataset.tags == ((0,), (1,))
    assert len(truth) == 0


def test_crowd_boxes_are_ignored_and_give_no_tag(tmp_path: Path) -> None:
    crowd = {"id": 1, "image_id": 1, "category_id": 5, "bbox": [1, 2, 10, 10], "iscrowd": 1}
    dataset, truth = read_annotated(write_json(tmp_path / "x.json", coco(annotations=[crowd])))
    assert truth.ignored.tolist() == [True]
    assert dataset.tags == ((), ())


def test_predicted_boxes_are_read_with_scores(tmp_path: Path) -> None:
    annotations = [
        {"id": 1, "image_id": 1, "category_id": 5, "bbox": [1, 2, 10, 10], "score": 0.25},
        {"id": 2, "image_id": 2, "category_id": 9, "bbox": [1, 2, 10, 10]},
    ]
    _, boxes = read_boxes(write_json(tmp_path / "x.json", coco(annotations=annotations)))
    np.testing.assert_array_equal(boxes.score, [0.25, np.nan])


def box(**changes: object) -> dict[str, object]:
    return {"id": 1, "image_id": 1, "category_id": 5, "bbox": [1, 2, 10, 10]} | changes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "not a Label Studio export"),
        ({"a": 1}, "no list 'images'"),
        ({"images": []}, "no image"),
        (coco(images=[{"id": 1}]), r"images\[0\] \(id 1\): the file name is None"),
        (coco(images=[{"id": 1, "file_name": "../secret.png"}]), "'../secret.png'; use names below"),
        (coco(images=[{"id": 1, "file_name": "/etc/passwd"}]), "use names below"),
        (coco(images=[{"id": 1, "file_name": "C:\\x.png"}]), "use names below"),
        (coco(images=[{"id": 1, "file_name": "a\x00b"}]), "file name"),
        (coco(images=[{"id": 1, "file_name": "a", "width": -3, "height": 2}]), "the size is -3 x 2"),
        (coco(images=[{"id": 1, "file_name": "a"}] * 2), "image id 1 is already used"),
        (coco(images=[{"id": i, "file_name": "a"} for i in (1, 2)]), "'a' was already listed"),
        (coco(categories=[{"id": 5, "name": "x"}] * 2), "category id 5 is already used"),
        (coco(categories=[{"id": 5, "name": "\ud800"}]), "class name"),
        (coco(annotations=[box(category_id=77)]), r"annotations\[0\] \(id 1\): category id 77"),
        (coco(annotations=[box(image_id=77)]), "no image with id 77"),
        (coco(annotations=[box(), box()]), "annotation id 1 is already used"),
        (coco(annotations=[box(bbox=[1, 2, 3])]), "not four numbers"),
        (coco(annotations=[box(bbox=[1, 2, None, 3])]), "not four numbers"),
        (coco(annotations=[box(bbox=[1, 2, float("nan"), 3])]), "not finite"),
        (coco(annotations=[box(bbox=[1, 2, -5, 3])]), "negative width or height"),
        (coco(annotations=[box(score="high")]), "the score is 'high'"),
        (coco(annotations={"a": 1}), "'annotations' is a dict of 1"),
        (coco(annotations=[3]), "not an object"),
    ],
)  # fmt: skip
def test_bad_input_gives_a_one_line_error_with_the_file(tmp_path: Path, content: object, message: str) -> None:
    file = write_json(tmp_path / "x.json", content)
    with pytest.raises(InputError, match=message) as caught:
        read(file)
    assert str(file) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_image_folder_is_found_next_to_the_annotations(tmp_path: Path) -> None:
    (tmp_path / "val2017").mkdir()
    (tmp_path / "val2017" / "b.png").write_bytes(b"x")
    file = write_json(tmp_path / "annotations" / "instances_val2017.json", coco())
    assert read(file).folder == tmp_path / "val2017"


def test_boxes_are_clipped_to_the_image_and_empty_ones_dropped(tmp_path: Path) -> None:
    annotations = [box(bbox=[-5, 10, 20, 100]), box(id=2, bbox=[10, 10, 0, 5]), box(id=3, bbox=[100, 100, 5, 5])]
    dataset, truth = read_annotated(write_json(tmp_path / "x.json", coco(annotations=annotations)))
    np.testing.assert_array_equal(truth.boxes, [[0, 10, 15, 30]])
    assert dataset.tags[0] == (0,)


def test_categories_with_the_same_name_become_one_class(tmp_path: Path) -> None:
    dataset, truth = read_annotated(
        write_json(tmp_path / "x.json", coco(categories=[{"id": i, "name": "x"} for i in (5.0, 9)]))
    )
    assert dataset.classes == ("x",)
    assert truth.label.tolist() == [0, 0]


def test_an_image_without_an_id_gets_an_unused_one(tmp_path: Path) -> None:
    images = [{"file_name": "a"}, {"file_name": "b", "id": 3}, {"file_name": "c"}]
    dataset = read(write_json(tmp_path / "x.json", coco(images=images, annotations=[])))
    assert [image.id for image in dataset.images] == [1, 3, 4]


def test_pycocotools_reads_coco(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset, boxes = sample()
    write("coco", tmp_path, dataset, boxes)
    reader = COCO(tmp_path / "annotations.json")
    assert sorted(reader.getImgIds()) == [1, 2, 7]
    assert [category["name"] for category in reader.loadCats(reader.getCatIds())] == ["hot dog", "cat"]
    assert reader.loadImgs([2]) == [{"id": 2, "file_name": "sub dir/b c.png", "width": 50, "height": 60}]
    annotations = reader.loadAnns(reader.getAnnIds(imgIds=[1]))
    assert [annotation["bbox"] for annotation in annotations] == [[1, 2, 10, 10], [0, 0, 40, 30]]
    assert [annotation["area"] for annotation in annotations] == [100, 1200]
    results = [{key: a[key] for key in ("image_id", "category_id", "bbox", "score")} for a in annotations]
    assert len(reader.loadRes(results).anns) == 2
    capsys.readouterr()
