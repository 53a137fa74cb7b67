"""The reasons for a box: every part of a score has plain words, and no part is lost."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import write_json
from pairloc.datasets.dataset import Dataset, Image
from pairloc.localization.evidence import TERMS
from pairloc.localization.explained import FILE
from pairloc.localization.explanation import BEFORE, NETWORK, PAIRS
from pairloc.report.reasons import REST, WORDS, Reasons, read_reasons
from runs.test_plain_words import jargon

BOX = (1.0, 2.0, 3.0, 4.0)


def test_every_part_of_a_score_has_plain_words() -> None:
    assert set(WORDS) == {*TERMS, PAIRS, BEFORE, NETWORK}
    assert jargon(" ".join(WORDS.values())) == []


@given(
    st.lists(st.tuples(st.sampled_from([*TERMS, PAIRS]), st.floats(-5, 5), st.floats(-5, 5)), unique_by=lambda r: r[0])
)
def test_shown_parts_sum_to_the_scores_and_the_largest_difference_comes_first(
    rows: list[tuple[str, float, float]],
) -> None:
    names, selected, other = [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    reasons = Reasons.of(names, selected, other, BOX)
    assert sum(part[1] for part in reasons.parts) == pytest.approx(sum(selected), abs=0.05)
    assert sum(part[2] for part in reasons.parts) == pytest.approx(sum(other), abs=0.05)
    named = [part for part in reasons.parts if part[0] != REST]
    assert len(reasons.parts) <= 7
    assert REST not in [part[0] for part in reasons.parts[:-1]]
    differences = [abs(one - two) for _, one, two in named]
    assert all(a >= b - 0.021 for a, b in pairwise(differences))


def test_parts_with_the_same_words_are_one_and_unknown_parts_keep_their_name() -> None:
    names = ("recurrence", "recurrence, ten best", "a later term", "border")
    reasons = Reasons.of(names, (1.0, 2.0, 0.5, 0.0), (0.5, 0.0, 0.0, 0.0), BOX)
    assert reasons.parts == (("recurs in images with the tag", 3.0, 0.5), ("a later term", 0.5, 0.0))


def test_without_another_box_the_largest_part_comes_first() -> None:
    reasons = Reasons.of(("border", "log area"), (1.0, -2.0), (1.0, -2.0), None)
    assert reasons.parts == (("size", -2.0, -2.0), ("image borders it touches", 1.0, 1.0))


def test_reasons_are_those_of_the_images_and_classes_of_the_page(tmp_path: Path) -> None:
    """The page may have the images and classes of another run, in another order."""
    run = Dataset((Image(7, "a.png", None), Image("x", "b.png", None)), ("cat", "dog"), ((0,), (0,)))
    page = Dataset((Image(1, "b.png", None), Image(2, "a.png", None)), ("dog", "cat"), ((1,), (1,)))
    cat = {
        "parts": ["border"], "images": [7, "x", 99], "selected": [[1.0], [2.0], [3.0]], "other": [[0.0]] * 3,
        "boxes": [list(BOX), None, None],
    }  # fmt: skip
    write_json(tmp_path / FILE, {"tags": {"cat": cat, "horse": cat}})
    found = read_reasons(tmp_path, run, page)
    assert {key: reasons.parts[0][1] for key, reasons in found.items()} == {(1, 1): 1.0, (0, 1): 2.0}
    assert (found[1, 1].box, found[0, 1].box) == (BOX, None)


def test_a_run_without_explanations_has_no_reasons(tmp_path: Path) -> None:
    assert read_reasons(tmp_path, Dataset((), (), ()), Dataset((), (), ())) == {}
