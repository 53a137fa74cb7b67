"""The report page in a headless browser, and the figures."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import image_file
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.report.figures import write_figures
from pairloc.report.outlines import outline
from pairloc.report.page import MethodResult, write_page
from pairloc.report.reasons import Reasons
from report.browsing import BROWSER, NO_BROWSER, visit

HOSTILE = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>"
CLASSES = (HOSTILE, "quotes \" and '", "😀", "حيوان", "plain")

VISIT, READ, WHY = ((Path(__file__).parent / name).read_text() for name in ("visit.js", "read.js", "why.js"))


def report_inputs(folder: Path) -> tuple[Dataset, list[MethodResult], GroundTruth]:
    images = tuple(Image(i, f"image_files/{i}.png", (40, 30)) for i in range(10))
    for image in images:
        image_file(folder / image.file, (40, 30))
    dataset = Dataset(images, CLASSES, tuple((i % 5,) for i in range(10)), folder=folder)
    index, label = np.arange(10), np.arange(10) % 5
    truth = GroundTruth(index, label, np.tile([5.0, 5, 25, 25], (10, 1)), np.zeros(10, dtype=np.bool_))
    off = np.where((index < 4)[:, None], [5.0, 5, 25, 25], [30.0, 0, 39, 9])
    corloc = {"0.5": {"mean": 0.4, "interval": [0.2, 0.6], "per_class": {CLASSES[0]: 0.5}}}
    right = ScoredBoxes(index, label, truth.boxes, np.linspace(0.9, 0.1, 10))
    history = [{"round": r, "step": "re-localize", "changed": 9 - r, "objective": 5.0 - r} for r in range(3)]
    methods = [
        MethodResult("warm-up", right, {"0.5": {"mean": 1.0, "interval": [1.0, 1.0], "per_class": {}}}, 1.5, tag="WU"),
        MethodResult("full", ScoredBoxes(index, label, off, np.linspace(0.1, 0.9, 10)), corloc, 2.5, history, "F"),
    ]
    return dataset, methods, truth


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    dataset, methods, truth = report_inputs(tmp_path)
    assert write_page(tmp_path / "report.html", dataset, methods, truth, embed=4, ceiling={"0.5": 0.95}) == 10
    seen = visit(tmp_path / "report.html", VISIT)
    assert seen["errors"] == []
    assert seen["ran"] is None
    assert seen["table"] == [["warm-up", "100.0", "1.5"], ["full", "40.0", "2.5"]]
    assert seen["classes"] == list(CLASSES)
    assert (seen["all"], seen["first_class"], seen["right"], seen["wrong"], seen["disagree"]) == (10, 2, 4, 6, 6)
    confidences = seen["confidences"]
    assert isinstance(confidences, list)
    assert confidences == sorted(confidences)
    assert seen["current"] == 1
    assert seen["open"] is True
    assert seen["hidden"] == 10  # one ground-truth box per card
    assert visit(tmp_path / "report.html", VISIT, "390,800")["all"] == 10


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_one_method_without_ground_truth_shows_only_boxes_and_confidence(tmp_path: Path) -> None:
    """There is nothing to compare, so the page names no method."""
    dataset, methods, _ = report_inputs(tmp_path)
    write_page(tmp_path / "report.html", dataset, [replace(methods[1], corloc={})])
    seen = visit(tmp_path / "report.html", READ)
    assert seen["errors"] == []
    assert seen["title"] == seen["heading"] == "Boxes found by pairloc"
    orders = ["lowest confidence first", "highest confidence first", "by file name"]
    assert seen["menus"] == [["all tags", *CLASSES], orders]
    assert seen["over_boxes"] == []
    facts, text = seen["facts"], str(seen["text"])
    assert isinstance(facts, list)
    assert all(re.search(r"confidence 0\.\d\d$", str(line)) for line in facts)
    assert len(facts) == 10
    assert not re.search(r"method|objective|round", text, re.IGNORECASE)


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
@pytest.mark.parametrize("size", ["1280,900", "500,800"])
def test_an_opened_image_shows_why_its_box_was_chosen(tmp_path: Path, size: str) -> None:
    """Two bars for every part, the other box dashed; names are text; an image without reasons shows none."""
    dataset, methods, _ = report_inputs(tmp_path)
    reasons = {
        (0, 0): Reasons(((HOSTILE, 2.0, -2.0), ("size", 1.0, 0.5)), (1.0, 2.0, 11.0, 12.0)),
        (1, 1): Reasons((("size", 1.5, 1.5),)),
        (3, 3): Reasons((("size", 1.0, 2.0),), (1.0, 2.0, 11.0, 12.0)),
    }
    write_page(tmp_path / "report.html", dataset, [replace(methods[1], corloc={}, reasons=reasons)])
    seen = visit(tmp_path / "report.html", WHY, size)
    assert seen["errors"] == []
    assert seen["ran"] is None
    assert "why its box was chosen" in str(seen["hint"])
    assert seen["kept_hidden"] is True
    opened = seen["opened"]
    assert isinstance(opened, list)
    first, second, third, _ = opened
    assert first["caption"] == "Why this box and not the dashed one"
    assert first["rows"] == [
        [HOSTILE, "+2.00", "\N{MINUS SIGN}2.00"],
        ["size", "+1.00", "+0.50"],
        ["score", "+3.00", "\N{MINUS SIGN}1.50"],
    ]
    assert first["bars"] == [[[50, 50], [0, 50]], [[50, 25], [50, 12.5]], []]
    assert second["caption"] == "Why this box"
    assert second["rows"] == [["size", "+1.50"], ["score", "+1.50"]]
    assert third["caption"] is None
    assert [entry["dashed"] for entry in opened] == [2, 0, 0, 2]
    assert [len(entry["notes"]) for entry in opened] == [1, 1, 0, 1]
    assert all(entry["fits"] for entry in opened)
    assert (seen["before"], seen["after"]) == (0, 2)  # drawn where a card is under the pointer, or the current one


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_tags_that_are_kept_apart_are_the_reason_for_a_lower_score(tmp_path: Path) -> None:
    dataset, methods, _ = report_inputs(tmp_path)
    reasons = {(0, 0): Reasons((("size", 1.0, 2.0),), (1.0, 2.0, 11.0, 12.0))}
    tags = ((0, 1), *dataset.tags[1:])
    several = Dataset(dataset.images, dataset.classes, tags, folder=dataset.folder)
    write_page(tmp_path / "report.html", several, [replace(methods[1], corloc={}, reasons=reasons)])
    opened = visit(tmp_path / "report.html", WHY)["opened"]
    assert isinstance(opened, list)
    assert "the boxes of an image's tags are kept apart" in opened[0]["notes"][1]


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_boxes_that_are_left_out_are_shown_and_marked(tmp_path: Path) -> None:
    dataset, methods, truth = report_inputs(tmp_path)
    low = int((methods[1].boxes.score < 0.5).sum())
    for least, ground_truth in ((0.5, None), (0.5, truth), (0.0, None)):
        write_page(tmp_path / "report.html", dataset, [replace(methods[1], least=least)], ground_truth)
        seen = visit(tmp_path / "report.html", WHY)
        assert seen["errors"] == []
        assert seen["low"] == seen["left_out"] == (low if least else 0)
        assert seen["kept_hidden"] is (least == 0)
        assert seen["hint"] == ""
        if least:
            assert (seen["only_low"], seen["only_kept"]) == (low, 10 - low)


def test_images_are_embedded_or_in_a_folder_and_nothing_is_fetched(tmp_path: Path) -> None:
    dataset, methods, truth = report_inputs(tmp_path)
    (tmp_path / "image_files" / "3.png").write_bytes(b"damaged")
    write_page(tmp_path / "report.html", dataset, methods, truth, embed=4)
    text = (tmp_path / "report.html").read_text()
    assert text.count("data:image/jpeg;base64,") == 3
    assert len(list((tmp_path / "report_files").iterdir())) == 6
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert HOSTILE not in text


def test_figures_for_papers(tmp_path: Path) -> None:
    dataset, methods, truth = report_inputs(tmp_path)
    dollars = Dataset(dataset.images, ("$x$", *CLASSES[1:]), dataset.tags, folder=dataset.folder)
    files = write_figures(tmp_path / "figures", dollars, methods, truth)
    assert {file.name for file in files} == {
        f"{stem}.{format}"
        for stem in ("corloc_per_class", "images", "successes", "failures")
        for format in ("png", "svg", "pdf")
    }
    assert all(file.stat().st_size > 1000 for file in files)


def test_without_ground_truth_there_is_no_corloc(tmp_path: Path) -> None:
    dataset, methods, _ = report_inputs(tmp_path)
    plain = [MethodResult(m.name, m.boxes, tag=m.tag) for m in methods]
    write_page(tmp_path / "report.html", dataset, plain)
    content = (tmp_path / "report.html").read_text().split('id="data">')[1].split("</script>")[0]
    data = json.loads(content)
    assert all(item["truth"] == [] for item in data["items"])
    assert [m["tag"] for m in data["methods"]] == ["WU", "F"]
    assert data["thresholds"] == data["charts"] == []


def test_a_chart_of_one_point_is_not_drawn(tmp_path: Path) -> None:
    dataset, methods, truth = report_inputs(tmp_path)
    steps = [{"round": r, "step": "re-localize", "changed": 9 - r, "objective": None} for r in range(2)]
    write_page(tmp_path / "report.html", dataset, [replace(methods[1], history=steps)], truth)
    content = (tmp_path / "report.html").read_text().split('id="data">')[1].split("</script>")[0]
    assert json.loads(content)["charts"] == []


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_masks_are_drawn_under_the_boxes(tmp_path: Path) -> None:
    dataset, methods, _ = report_inputs(tmp_path)
    mask = np.zeros((30, 40), dtype=np.bool_)
    mask[0:9, 30:39] = True
    shown = replace(methods[1], outlines={(6, 1): outline(mask)})
    write_page(tmp_path / "report.html", dataset, [shown])
    script = """const path = document.querySelector("path.mask"), outer = path.ownerSVGElement.getBoundingClientRect();
    const b = path.getBoundingClientRect(), w = outer.width / 40, h = outer.height / 30;
    const seen = {errors: window.errors, masks: document.querySelectorAll("path.mask").length,
      box: [(b.left - outer.left) / w, (b.top - outer.top) / h, b.width / w, b.height / h].map(Math.round)};
    const done = document.createElement("pre"); done.id = "seen"; done.textContent = JSON.stringify(seen);
    document.body.append(done);"""
    seen = visit(tmp_path / "report.html", script)
    assert seen == {"errors": [], "masks": 1, "box": [30, 0, 9, 9]}
