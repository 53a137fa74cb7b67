"""Localization: iteration, and its conversion to COCO, pandas, supervision and HTML."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import plain_settings, plain_transfer, planted_store, planted_truth
from pairloc.datasets.dataset import Dataset, Image
from pairloc.errors import InputError
from pairloc.localization.engine import learn_source, localize_target
from pairloc.localization.result import FoundBox, Localization


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Localization:
    """Localize 30 planted images by their unary scores; the fourth has no tag and the sixth has two."""
    store, shown = planted_store(tmp_path_factory.mktemp("result") / "s", bags=30)
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=20))
    tags = list(store.dataset.tags)
    tags[3], tags[5] = (), (0, 2)
    dataset = Dataset(store.dataset.images, store.dataset.classes, tuple(tags), (10, 20, 30))
    return localize_target(store, dataset, learned, plain_settings(), method="warm-up-unary")


def test_iterating_yields_every_image_with_its_boxes(found: Localization) -> None:
    images = list(found)
    assert len(found) == len(images) == 30
    assert [image.file for image in images] == [f"{index}.jpg" for index in range(30)]
    assert [[box.tag for box in images[i].boxes] for i in (3, 4, 5)] == [[], ["class 1"], ["class 0", "class 2"]]
    assert all(image.size == (100, 100) for image in images)  # known from the bags, not from the tags
    rows = {(int(i), int(c)): row for row, (i, c) in enumerate(zip(found.boxes.image, found.boxes.label, strict=True))}
    assert len(rows) == sum(len(image.boxes) for image in images) == len(found.boxes)
    for index, image in enumerate(images):
        for box in image.boxes:
            assert isinstance(box, FoundBox)
            row = rows[index, found.dataset.classes.index(box.tag)]
            assert list(box.box) == found.boxes.boxes[row].tolist()
            assert box.confidence == found.boxes.score[row]
            assert 0 <= box.confidence <= 1
    assert (found.n_iter, found.converged, len(found.history), found.curves) == (0, False, 1, ())


def test_a_coco_file_has_sizes_and_scores(found: Localization) -> None:
    content = found.to_coco()
    images, annotations = content["images"], content["annotations"]
    assert isinstance(images, list)
    assert isinstance(annotations, list)
    assert all((image["width"], image["height"]) == (100, 100) for image in images)
    assert len(annotations) == len(found.boxes)
    for annotation, score, box in zip(annotations, found.boxes.score, found.boxes.boxes, strict=True):
        assert annotation["score"] == score
        x, y, width, height = annotation["bbox"]
        assert np.allclose([x, y, x + width, y + height], box, atol=0.02)
    assert {annotation["category_id"] for annotation in annotations} == {10, 20, 30}


def test_alternatives_are_sorted_and_start_with_the_selected_box(found: Localization) -> None:
    for index, image in enumerate(found):
        for box in image.boxes:
            boxes, scores = found.alternatives(index, box.tag, count=3)
            assert boxes.shape == (3, 4)
            assert (np.diff(scores) <= 0).all()
            assert boxes[0].tolist() == list(box.box)
    boxes, scores = found.alternatives(0, "class 0", count=100)
    assert len(boxes) == len(scores) == 6  # all proposals of the bag
    for image_, tag, message in (
        (0, "dog", "no tag 'dog'"),
        (30, "class 0", "no image 30"),
        (-1, "class 0", "no image -1"),
        (3, "class 0", "has no proposals for the tag 'class 0'"),
    ):
        with pytest.raises(InputError, match=message):
            found.alternatives(image_, tag)


def test_only_confident_boxes_are_kept(found: Localization) -> None:
    """Images, tags and what is known about every tag stay; a box of exactly the least confidence is kept."""
    scores = found.boxes.score
    assert len(found.confident(0).boxes) == len(found.boxes)
    least = float(np.median(scores))
    sure = found.confident(least)
    assert sure.boxes.score.tolist() == scores[scores >= least].tolist()
    assert 0 < len(sure.boxes) < len(found.boxes)
    assert (len(sure), sure.dataset) == (len(found), found.dataset)
    assert sum(len(image.boxes) for image in sure) == len(sure.boxes)
    assert sure.alternatives(0, "class 0")[1].tolist() == found.alternatives(0, "class 0")[1].tolist()
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(InputError, match="must be between 0 and 1"):
            found.confident(wrong)


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("to_supervision", "supervision")])
def test_a_missing_package_is_named(
    found: Localization, monkeypatch: pytest.MonkeyPatch, method: str, package: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(InputError, match=f"^{package} is not installed: pip install {package}$"):
        getattr(found, method)()


def test_pandas_gets_a_row_per_box(found: Localization) -> None:
    pytest.importorskip("pandas")
    table = found.to_pandas()
    assert list(table.columns) == ["image", "tag", "x1", "y1", "x2", "y2", "confidence"]
    assert len(table) == len(found.boxes)
    first = next(iter(found))
    assert tuple(table.iloc[0]) == (first.file, first.boxes[0].tag, *first.boxes[0].box, first.boxes[0].confidence)


def test_supervision_gets_detections_for_every_image(found: Localization) -> None:
    supervision = pytest.importorskip("supervision")
    detections = found.to_supervision()
    assert list(detections) == [image.file for image in found]
    for image in found:
        image_detections = detections[image.file]
        assert isinstance(image_detections, supervision.Detections)
        assert image_detections.xyxy.tolist() == [list(box.box) for box in image.boxes]
        assert list(image_detections.data["class_name"]) == [box.tag for box in image.boxes]
        assert image_detections.confidence.tolist() == [box.confidence for box in image.boxes]


def test_the_notebook_table_escapes_names(found: Localization) -> None:
    images = (Image(1, "<img src=x>.jpg", (100, 100)), *found.dataset.images[1:])
    hostile = Dataset(images, ("<script>alert(1)</script>", "a & b", "c"), found.dataset.tags)
    shown = replace(found, dataset=hostile)._repr_html_()
    assert "<script>" not in shown
    assert "<img" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "&lt;img src=x&gt;.jpg" in shown
    assert "a &amp; b" in shown
    assert shown.count("<tr>") == 21  # the header and the first twenty boxes
    assert f"{len(found.boxes)} boxes in 30 images" in shown


def test_image_sizes_in_the_tags_are_kept(tmp_path: Path) -> None:
    store, shown = planted_store(tmp_path / "s", bags=6)
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=2))
    images = (Image(1, "0.jpg", (70, 80)), *store.dataset.images[1:])
    dataset = Dataset(images, store.dataset.classes, store.dataset.tags)
    found = localize_target(store, dataset, learned, plain_settings(rounds=0))
    assert [image.size for image in found] == [(70, 80), *[(100, 100)] * 5]
    assert found.unreadable == ()
