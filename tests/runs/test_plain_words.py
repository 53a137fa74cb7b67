"""The output of localize, for users without knowledge of the method, contains no jargon."""

import re
from pathlib import Path

import pytest

from report.browsing import BROWSER, NO_BROWSER, visit
from runs.calling import call

JARGON = r"\b(bags?|unary|warm-?up|full|folds?|playing|re-?locali[sz]\w*)\b"
READ_PAGE = (Path(__file__).parents[1] / "report" / "read.js").read_text()


def jargon(text: str) -> list[str]:
    """Return the jargon in a text."""
    return re.findall(JARGON, text, re.IGNORECASE)


def test_the_log_of_localize_uses_no_jargon(finished_run: Path, tmp_path: Path) -> None:
    scenes, out = finished_run / "data" / "scenes", tmp_path / "out"
    command = (
        "localize",
        scenes / "images",
        "--tags",
        scenes / "target_tags.csv",
        "--out",
        out,
        "--weights",
        finished_run,
    )
    first = call(*command)
    lines = first.text.splitlines()
    assert first.status == 0
    assert "choosing a box for every tag ..." in lines
    assert any(re.fullmatch(r"  initial selection: \d+ boxes, \d+\.\d s", line) for line in lines)
    assert any(re.fullmatch(r"  round 1: re-trained on the boxes, \d+\.\d s", line) for line in lines)
    assert any(re.fullmatch(r"  round 1: \d+ boxes changed, \d+\.\d s", line) for line in lines)
    assert "evaluating" not in first.text  # there is no ground truth
    assert jargon(first.text) == []
    other = call(*command, "--rounds", 0)
    assert "it is kept in" in other.text
    back = call(*command)
    assert "reusing the earlier result" in back.text
    assert jargon(other.text + back.text) == []


def test_the_help_of_localize_uses_no_jargon() -> None:
    text = call("localize", "--help").text
    assert "--tags" in text
    assert jargon(text) == []


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_the_report_of_localize_uses_no_jargon(localized: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_bytes((localized / page.name).read_bytes())
    seen = visit(page, READ_PAGE)
    assert seen["errors"] == []
    assert seen["title"] == seen["heading"] == "Boxes found by pairloc"
    assert "confidence" in str(seen["text"])
    assert jargon(str(seen)) == []
