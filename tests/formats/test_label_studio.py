from pathlib import Path

import numpy as np
import pytest

from helpers import write_json
from pairloc.errors import InputError
from pairloc.formats.reading import read_boxes


def result(**value: object) -> dict[str, object]:
    full_value = {"x": 50, "y": 0, "width": 50, "height": 50, "rectanglelabels": ["hot dog"]} | value
    return {"original_width": 40, "original_height": 20, "value": full_value, "score": 0.5}


def task(image: str, *results: object, key: str = "annotations") -> dict[str, object]:
    return {"data": {"image": image}, key: [{"result": list(results)}]}


def test_percentages_become_pixels_and_choices_become_tags(tmp_path: Path) -> None:
    choice = {"type": "choices", "value": {"choices": ["cat"]}}
    tasks = [task("a.jpg", result(), choice), task("b.jpg", result(x=0), key="predictions")]
    dataset, boxes = read_boxes(write_json(tmp_path / "x.json", tasks))
    assert boxes.boxes.tolist() == [[20, 0, 40, 10], [0, 0, 20, 10]]
    assert boxes.score.tolist() == [0.5, 0.5]
    assert dataset.names(0) == ("hot dog", "cat")


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("/data/local-files/?d=photos/a%20b.jpg", "photos/a b.jpg"),
        ("/data/upload/3/ab12-a.jpg", "ab12-a.jpg"),
        ("s3://bucket/x/a.jpg", "a.jpg"),
        ("sub/a.jpg", "sub/a.jpg"),
    ],
)
def test_file_names_of_urls(tmp_path: Path, url: str, file: str) -> None:
    dataset, _ = read_boxes(write_json(tmp_path / "x.json", [task(url, result())]))
    assert dataset.images[0].file == file


def test_a_rotated_rectangle_is_read_as_its_bounding_box(tmp_path: Path) -> None:
    rotated = result(x=50, y=50, width=25, height=25, rotation=90)
    _, boxes = read_boxes(write_json(tmp_path / "x.json", [task("a.jpg", rotated)]))
    np.testing.assert_allclose(boxes.boxes, [[15, 10, 20, 20]], atol=1e-9)


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([{"x": 1}], "not a list of tasks"),
        ([task("../a.jpg", result())], "use names below"),
        ([task("a.jpg", result(x="left"))], "not four numbers"),
        ([task("a.jpg", result(width=float("nan")))], "not finite"),
        ([task("a.jpg", {"value": 3})], "the value is 3"),
    ],
)
def test_bad_input_gives_a_precise_error(tmp_path: Path, tasks: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_boxes(write_json(tmp_path / "x.json", tasks))


def test_cancelled_annotations_and_relations_are_skipped(tmp_path: Path) -> None:
    relation = {"type": "relation", "from_id": "a", "to_id": "b"}
    polygon = {
        "original_width": 40,
        "original_height": 20,
        "value": {"points": [[10, 10], [50, 20]], "polygonlabels": ["p"]},
    }
    cancelled = {"was_cancelled": True, "result": [result()]}
    tasks = [
        {"data": {"title": "x", "image": "a.jpg"}, "annotations": [cancelled, {"result": [relation, polygon]}]},
        {"data": {"url": "b.jpg"}, "annotations": [{"result": []}], "predictions": [{"result": [result()]}]},
    ]
    dataset, boxes = read_boxes(write_json(tmp_path / "x.json", tasks))
    assert [image.file for image in dataset.images] == ["a.jpg", "b.jpg"]
    assert boxes.boxes.tolist() == [[4, 2, 20, 4]]
    assert dataset.tags == ((0,), ())
