"""Boxes survive writing and reading in every format."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import sample, write_images
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.scored import ScoredBoxes
from pairloc.formats.reading import read_boxes
from pairloc.formats.writing import writable_formats, write

letters = st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co", "Zl", "Zp"])
names = st.text(letters, min_size=1, max_size=12).map(str.strip).filter(bool)
SPECIAL = ["hot dog", "a;b,c|d", "<b>&amp;", '"quoted"', "null", "0", "no", "- x", "日本 語", "👩‍🚀", "#", "it's: {x}"]


@st.composite
def datasets(draw: st.DrawFn) -> tuple[Dataset, ScoredBoxes]:
    classes = tuple(draw(st.lists(st.sampled_from(SPECIAL) | names, min_size=1, max_size=3, unique=True)))
    sizes = draw(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=3))
    rows = []
    for image, (width, height) in enumerate(sizes):
        for label in range(len(classes)):
            if draw(st.booleans()):
                x1, y1 = draw(st.floats(0, width - 1)), draw(st.floats(0, height - 1))
                x2, y2 = draw(st.floats(x1 + 1, max(width, x1 + 1))), draw(st.floats(y1 + 1, max(height, y1 + 1)))
                rows.append((image, label, x1, y1, x2, y2, draw(st.floats(0, 1))))
    table = np.array(rows, dtype=np.float64).reshape(-1, 7)
    image_column, labels = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    tags = tuple(tuple(sorted(labels[image_column == image].tolist())) for image in range(len(sizes)))
    images = tuple(
        Image(i + 1, f"{draw(st.sampled_from(['sub dir/ä', 'train/images/x', '']))}{i}.png", size)
        for i, size in enumerate(sizes)
    )
    return Dataset(images, classes, tags), ScoredBoxes(image_column, labels, table[:, 2:6], table[:, 6])


Row = tuple[str, str, list[float], float]


def rows_of(dataset: Dataset, boxes: ScoredBoxes) -> list[Row]:
    return sorted(
        (dataset.images[image].file, dataset.classes[label], box, score)
        for image, label, box, score in zip(
            boxes.image.tolist(), boxes.label.tolist(), boxes.boxes.tolist(), boxes.score.tolist(), strict=True
        )
    )


@pytest.mark.parametrize("format", writable_formats())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=datasets())
def test_boxes_survive_a_round_trip(format: str, case: tuple[Dataset, ScoredBoxes]) -> None:
    dataset, boxes = case
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        out = root / "out"
        out.mkdir()
        write(format, out, dataset, boxes, write_images(root / "image_files", dataset))
        after = rows_of(*read_boxes(out, format))
        if format == "yolo":
            for scored in (out / "labels_with_scores").rglob("*.txt"):
                relative = scored.relative_to(out / "labels_with_scores")
                scored.replace(out / relative if relative.parts[0] == "images" else out / "labels" / relative)
            after = rows_of(*read_boxes(out, format))
    before = rows_of(dataset, boxes)
    assert [row[:2] for row in after] == [row[:2] for row in before]
    for new, old in zip(after, before, strict=True):
        np.testing.assert_allclose(new[2], old[2], atol=0.5 + 1e-6)
        assert new[3] == pytest.approx(old[3])


@pytest.mark.parametrize("format", writable_formats())
def test_a_data_set_without_boxes_survives_a_round_trip(tmp_path: Path, format: str) -> None:
    dataset, boxes = sample()
    no_boxes = ScoredBoxes(boxes.image[:0], boxes.label[:0], boxes.boxes[:0], boxes.score[:0])
    images = write_images(tmp_path / "image_files", dataset)
    out = tmp_path / "out"
    out.mkdir()
    write(format, out, dataset, no_boxes, images)
    reread, boxes_read = read_boxes(out, format)
    assert len(boxes_read) == 0
    assert sorted(image.file for image in reread.images) == sorted(image.file for image in dataset.images)


@pytest.mark.parametrize("format", writable_formats())
def test_boxes_without_a_score_stay_without_one(tmp_path: Path, format: str) -> None:
    dataset, boxes = sample()
    unscored = ScoredBoxes(boxes.image, boxes.label, boxes.boxes, np.full(len(boxes), np.nan))
    out = tmp_path / "out"
    out.mkdir()
    write(format, out, dataset, unscored, write_images(tmp_path / "image_files", dataset))
    _, boxes_read = read_boxes(out, format)
    assert np.isnan(boxes_read.score).all()
    assert len(boxes_read) == len(boxes)
