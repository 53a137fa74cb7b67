from pathlib import Path

import numpy as np
import pytest

from pairloc.errors import InputError
from pairloc.formats.reading import read_boxes


def test_boxes_and_tags(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text(
        '<annotations><image id="0" name="a.jpg" width="40" height="30"><tag label="hot dog"/>'
        '<box label="cat" xtl="1" ytl="2" xbr="3.5" ybr="4"><attribute name="score">0.5</attribute></box></image>'
        '<image id="1" name="b.jpg" width="40" height="30"/></annotations>'
    )
    dataset, boxes = read_boxes(tmp_path / "x.xml")
    assert [dataset.names(index) for index in range(2)] == [("hot dog", "cat"), ()]
    assert boxes.boxes.tolist() == [[1, 2, 3.5, 4]]
    assert boxes.score.tolist() == [0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a/>", "its root is <a>"),
        ('<annotations><image name="a" width="x" height="3"/></annotations>', "the size is 'x' x '3'"),
        ('<annotations><image name="a"><box label="c" xtl="1"/></image></annotations>', "image 1, box 1: the box"),
        ("<annotations/>", "no image"),
    ],
)
def test_bad_input_gives_a_precise_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.xml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_boxes(tmp_path / "x.xml", "cvat")


def test_rotated_boxes_and_polygons_are_read_as_bounding_boxes(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text(
        '<annotations><image name="a.jpg" width="100" height="100">'
        '<box label="cat" xtl="20" ytl="30" xbr="80" ybr="40" rotation="90.0"/>'
        '<polygon label="cat" points="1,2;30,4;5,60"/><points label="cat" points="1,2"/></image></annotations>'
    )
    _, boxes = read_boxes(tmp_path / "x.xml")
    np.testing.assert_allclose(boxes.boxes, [[45, 5, 55, 65], [1, 2, 30, 60]])


def test_video_annotations_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text("<annotations><track/></annotations>")
    with pytest.raises(InputError, match="CVAT for video"):
        read_boxes(tmp_path / "x.xml")
