"""The receiving programs' own readers take what we write (those that live in our environment)."""

from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO

from helpers import sample
from pairloc.export import write
from pairloc.io import read_xml


def test_pycocotools_reads_coco(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset, boxes = sample()
    write("coco", tmp_path, dataset, boxes)
    coco = COCO(tmp_path / "annotations.json")
    assert sorted(coco.getImgIds()) == [1, 2, 7]
    assert [category["name"] for category in coco.loadCats(coco.getCatIds())] == ["hot dog", "cat"]
    annotations = coco.loadAnns(coco.getAnnIds(imgIds=[1]))
    assert [annotation["bbox"] for annotation in annotations] == [[1, 2, 10, 10], [0, 0, 40, 30]]
    assert [annotation["area"] for annotation in annotations] == [100, 1200]
    results = [{key: a[key] for key in ("image_id", "category_id", "bbox", "score")} for a in annotations]
    assert len(coco.loadRes(results).anns) == 2
    capsys.readouterr()


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
