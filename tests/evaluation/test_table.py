import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import coco, write_json
from pairloc.errors import InputError
from pairloc.evaluation.compare import difference
from pairloc.evaluation.corloc import Localized
from pairloc.evaluation.table import evaluation_of, evaluation_text, read_found
from pairloc.formats.reading import read_annotated

RIGHT = [
    {"image_id": 1, "category_id": 5, "bbox": [1, 2, 10, 10], "score": 0.9},
    {"image_id": 2, "category_id": 9, "bbox": [0, 0, 4, 3], "score": 0.2},
]


def test_a_data_set_with_boxes_and_coco_results_give_the_same_evaluation(tmp_path: Path) -> None:
    truth = read_annotated(write_json(tmp_path / "truth.json", coco()))
    results = write_json(tmp_path / "results.json", RIGHT)
    annotations = [entry | {"id": i, "iscrowd": 0} for i, entry in enumerate(RIGHT, start=1)]
    boxes = write_json(tmp_path / "boxes.json", coco(annotations=annotations))
    from_results, from_boxes = (evaluation_of(file, *truth) for file in (results, boxes))
    assert from_results == from_boxes
    assert from_results["corloc"]["0.5"]["per_class"] == {"hot dog": 1.0, "cat": 0.0}
    assert from_results["corloc"]["0.5"]["causes"]["part"] == 0.5
    assert from_results["corloc"]["0.5"]["confident_half"] == 1.0
    assert "most confident half" in evaluation_text(from_results)
    json.dumps(from_results, allow_nan=False)


def test_bad_input_is_named(tmp_path: Path) -> None:
    truth = read_annotated(write_json(tmp_path / "truth.json", coco()))
    for change, message in (
        ({"image_id": 77}, "image_id is 77, which is not in the data set"),
        ({"category_id": 77}, "category_id is 77, which is not in the data set"),
        ({"bbox": [0, 0, 0, 5]}, "has no area"),
        ({"score": None}, "five finite numbers"),
    ):
        file = write_json(tmp_path / "r.json", [RIGHT[0] | change])
        with pytest.raises(InputError, match=message):
            read_found(file, truth[0])
    with pytest.raises(InputError, match="not between 0 and 1"):
        evaluation_of(write_json(tmp_path / "r.json", RIGHT), *truth, (1.5,))
    empty = read_annotated(write_json(tmp_path / "none.json", coco(annotations=[])))
    with pytest.raises(InputError, match="no box that counts"):
        evaluation_of(write_json(tmp_path / "r.json", RIGHT), *empty)


def test_all_measures_agree_on_a_box_at_the_threshold(tmp_path: Path) -> None:
    truth = read_annotated(write_json(tmp_path / "truth.json", coco()))
    half = [RIGHT[0] | {"bbox": [1, 2, 10, 5]}]
    file = write_json(tmp_path / "r.json", half)
    for strict, fraction in ((True, 0.0), (False, 0.5)):
        row = evaluation_of(file, *truth, (0.5,), strict=strict, against=file)["corloc"]["0.5"]
        assert row["mean"] == row["causes"]["right"] == fraction
        assert row["reliability"][0]["right"] == 2 * fraction


def test_only_the_best_scored_box_of_an_image_counts(tmp_path: Path) -> None:
    truth = read_annotated(write_json(tmp_path / "truth.json", coco()))
    wrong = RIGHT[0] | {"bbox": [20, 20, 5, 5], "score": 0.95}
    evaluation = evaluation_of(write_json(tmp_path / "r.json", [RIGHT[0], wrong]), *truth)
    assert evaluation["corloc"]["0.5"]["per_class"]["hot dog"] == 0


def test_a_paired_bootstrap_detects_a_small_difference() -> None:
    random = np.random.default_rng(0)
    n = 300
    base = random.random(n)
    first = Localized(np.arange(n), np.zeros(n, dtype=np.int64), base, base, ("a",))
    second = Localized(first.image, first.label, base + 0.04, base, ("a",))
    result = difference(first, second, 0.5)
    assert result.mean == pytest.approx(np.mean(base + 0.04 > 0.5) - np.mean(base > 0.5))
    assert result.interval[0] > 0
    assert result.better > 0.99
    with pytest.raises(InputError, match="not of the same images and classes"):
        difference(first, Localized(first.image + 1, first.label, base, base, ("a",)))


def test_images_that_a_file_does_not_list_do_not_count_and_the_text_says_so(tmp_path: Path) -> None:
    """An image that is listed without a box is a miss; one that is not listed is left out, for both files compared."""
    truth = read_annotated(write_json(tmp_path / "truth.json", coco()))
    content: dict[str, Any] = {**coco(annotations=[RIGHT[0] | {"id": 1, "iscrowd": 0}])}
    every = write_json(tmp_path / "every.json", content)
    part = write_json(tmp_path / "part.json", content | {"images": content["images"][:1]})
    of_every, of_part = (evaluation_of(file, *truth, (0.5,), against=every) for file in (every, part))
    assert of_every["not listed"] == 0
    assert of_every["corloc"]["0.5"]["per_class"] == {"hot dog": 1.0, "cat": 0.0}
    assert of_part["not listed"] == 1
    assert of_part["images"] == 1
    assert of_part["corloc"]["0.5"]["mean"] == 1.0
    assert of_part["against"]["0.5"]["mean"] == 0.0
    assert "tagged images that this file does not list, and that do not count: 1" in evaluation_text(of_part)
    assert "do not count" not in evaluation_text(of_every)


def test_boxes_of_other_images_are_refused(tmp_path: Path) -> None:
    truth = read_annotated(write_json(tmp_path / "truth.json", coco()))
    other = json.loads(json.dumps(coco()).replace(".png", "-other.png"))
    for image in other["images"]:
        image["id"] += 100
    for annotation in other["annotations"]:
        annotation["image_id"] += 100
    with pytest.raises(InputError, match="no image in common"):
        evaluation_of(write_json(tmp_path / "other.json", other), *truth)
