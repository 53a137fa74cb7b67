from pathlib import Path

import pytest

from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.findings import Findings
from pairloc.errors import InputError
from pairloc.formats import read
from pairloc.formats.csv import write_tags
from pairloc.formats.reading import parse, read_boxes

CAT_AND_DOG = {"b.jpg": ("cat",), "c.jpg": ("dog",)}


def tags(tmp_path: Path, text: str, name: str = "x.csv") -> dict[str, tuple[str, ...]]:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    dataset = read(file)
    return {image.file: dataset.names(index) for index, image in enumerate(dataset.images)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image,labels\na.jpg,\n", {"a.jpg": ()}),
        ("image,labels\na.jpg,cat;hot dog\nb.jpg,cat\n", {"a.jpg": ("cat", "hot dog"), "b.jpg": ("cat",)}),
        ('image,labels\na.jpg,"cat, hot dog"\nb.jpg,cat\n', {"a.jpg": ("cat", "hot dog"), "b.jpg": ("cat",)}),
        ("image,labels\na.jpg,cat|hot dog\n", {"a.jpg": ("cat", "hot dog")}),
        ("image,labels\na.jpg,cat dog\nb.jpg,cat\nc.jpg,dog\n", {"a.jpg": ("cat", "dog")} | CAT_AND_DOG),
        ("image,labels\na.jpg,hot dog\nb.jpg,cat\nc.jpg,dog\n", {"a.jpg": ("hot dog",)} | CAT_AND_DOG),
        ("image,label\na.jpg,cat dog\na.jpg,cat\nb.jpg,dog\n", {"a.jpg": ("cat dog", "cat"), "b.jpg": ("dog",)}),
        ("Filename;Class\na.jpg;hot dog\n", {"a.jpg": ("hot dog",)}),
        ("file\ttags\nsub dir/a b.jpg\tcat\n", {"sub dir/a b.jpg": ("cat",)}),
        ("\ufeffimage,labels\r\na.jpg,cat\r\n\r\n", {"a.jpg": ("cat",)}),
    ],
)  # fmt: skip
def test_tag_tables(tmp_path: Path, text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert tags(tmp_path, text) == expected


def test_a_guessed_separator_is_a_finding(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("image,labels\na.jpg,cat dog\nb.jpg,cat\nc.jpg,dog\n")
    findings = Findings()
    parse(file, "csv", None, findings)
    assert [finding.kind for finding in findings] == ["guessed-separator"]


def test_boxes_in_a_table(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text(
        "filename,width,height,class,xmin,ymin,xmax,ymax,score\na.jpg,40,30,hot dog,1,2,3,4,0.5\nb.jpg,9,9,,,,,,\n"
    )
    dataset, boxes = read_boxes(file)
    assert boxes.boxes.tolist() == [[1, 2, 3, 4]]
    assert boxes.score.tolist() == [0.5]
    assert [image.size for image in dataset.images] == [(40, 30), (9, 9)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,labels\n", "contains no images"),
        ("a.jpg,cat\nb.jpg,dog\n", "line 1: no column for the image"),
        ("\x1c", "is empty"),
        ("image,label,label\na.jpg,cat,dog\n", "two columns have the same name"),
        ("image,label,x1,y1,x2,y2\na.jpg,cat,1,2,1_0,4\n", "line 2: the box is"),
        ("image,wrong\na.jpg,cat\n", "no column for the labels"),
        ("image,labels\na.jpg,cat,dog\n", "line 2: has 3 cells, but the header has 2"),
        ('image,labels\na.jpg,"cat\n', "line 2|line 3"),
        ("image,labels\n../a.jpg,cat\n", "line 2: the file name is '../a.jpg'"),
        ("image,labels\n,cat\n", "line 2: the file name"),
        ("image,label,x1,y1,x2,y2\na.jpg,cat,1,2,x,4\n", "line 2: the box is"),
    ],
)
def test_bad_input_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tags(tmp_path, text)


def test_text_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"image,labels\n\xff\xfe,cat\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize("classes", [("cat", "dog"), ("cat", "hot dog"), ("a;b", "c,d")])
def test_written_tags_are_read_back(tmp_path: Path, classes: tuple[str, ...]) -> None:
    images = tuple(Image(index, f"{index}.jpg", None) for index in range(3))
    dataset = Dataset(images, classes, ((0, 1), (1,), ()))
    write_tags(tmp_path / "x.csv", dataset)
    reread = read(tmp_path / "x.csv")
    assert [set(reread.names(index)) for index in range(3)] == [set(dataset.names(index)) for index in range(3)]
