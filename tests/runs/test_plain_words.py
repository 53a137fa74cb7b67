"""What somebody who has tagged images and wants boxes reads: no word that has to be explained first."""

import re
from pathlib import Path

import pytest

from report.browsing import BROWSER, NO_BROWSER, visit
from runs.calling import call

UNEXPLAINED = r"\b(bags?|unary|warm-?up|full|folds?|playing|re-?locali[sz]\w*)\b"
READ = (Path(__file__).parents[1] / "report" / "read.js").read_text()


def unexplained(text: str) -> list[str]:
    """The words of a text that its reader would have to look up."""
    return re.findall(UNEXPLAINED, text, re.IGNORECASE)


def test_localize_needs_no_glossary(whole: Path, tmp_path: Path) -> None:
    scenes, out = whole / "data" / "scenes", tmp_path / "out"
    command = ("localize", scenes / "images", "--tags", scenes / "target_tags.csv", "--out", out, "--weights", whole)
    first = call(*command)
    lines = first.text.splitlines()
    assert first.status == 0
    assert "choosing a box for every tag ..." in lines
    assert any(re.fullmatch(r"  first choice: \d+ boxes, \d+\.\d s", line) for line in lines)
    assert any(re.fullmatch(r"  round 1: learned from the boxes, \d+\.\d s", line) for line in lines)
    assert any(re.fullmatch(r"  round 1: \d+ boxes changed, \d+\.\d s", line) for line in lines)
    assert "measuring" not in first.text  # there is nothing to measure with
    assert unexplained(first.text) == []
    other = call(*command, "--rounds", 0)
    assert "it is kept in" in other.text
    back = call(*command)
    assert "used again" in back.text
    assert unexplained(other.text + back.text) == []


def test_neither_does_its_help() -> None:
    text = call("localize", "--help").text
    assert "--tags" in text
    assert unexplained(text) == []


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_nor_does_its_page(located: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_bytes((located / page.name).read_bytes())
    seen = visit(page, READ)
    assert seen["errors"] == []
    assert seen["title"] == seen["heading"] == "Boxes found by pairloc"
    assert "confidence" in str(seen["text"])
    assert unexplained(str(seen)) == []
