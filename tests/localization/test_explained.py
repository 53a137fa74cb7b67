"""The file of explanations: it says what the result says, stays small, and is refused when it is damaged."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import plain_settings, plain_transfer, planted_store, planted_truth
from pairloc.errors import InputError
from pairloc.localization.combination import Combination, Weighing
from pairloc.localization.engine import learn_source, localize_target
from pairloc.localization.evidence import TERMS
from pairloc.localization.explained import FILE, read_explanations, write_explanations
from pairloc.localization.result import Localization


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Localization:
    """Localize 30 planted images by learned evidence."""
    store, shown = planted_store(tmp_path_factory.mktemp("explained") / "s", bags=30)
    learned = learn_source(store, planted_truth(store, shown), plain_transfer(steps=20))
    terms = {name: (0.0, 1.0, 0.3) for name, term in TERMS.items() if term.needs in ("", "pairs", "negatives")}
    combination = Combination(learned_on="", weighings=(Weighing(terms=terms),))
    settings = plain_settings(rounds=0, unary={"combination": "learned"})
    return localize_target(store, store.dataset, replace(learned, combination=combination), settings, method="warm-up")


def test_the_file_says_what_the_result_says(found: Localization, tmp_path: Path) -> None:
    write_explanations(tmp_path, found)
    explained = read_explanations(tmp_path)
    assert explained is not None
    assert set(explained.tags) == set(found.dataset.classes)
    count = 0
    for name, tag in explained.tags.items():
        for row, id in enumerate(tag.images):
            image = [entry.id for entry in found.dataset.images].index(id)
            parts = dict(zip(tag.parts, zip(tag.selected[row], tag.other[row], strict=True), strict=True))
            expected = found.explain(image, name)
            assert set(parts) == set(expected)
            for part, values in expected.items():
                assert parts[part] == pytest.approx(values, abs=6e-4)
            boxes, scores = found.alternatives(image, name, count=100)
            other = tag.boxes[row]
            assert other is not None
            (place,) = [index for index, box in enumerate(boxes.round(1).tolist()) if box == list(other)]
            assert sum(tag.other[row]) == pytest.approx(scores[place], abs=0.02)
            count += 1
    assert count == len(found.boxes)
    assert (tmp_path / FILE).stat().st_size < 500 * count


def test_without_another_box_there_is_none_in_the_file(found: Localization, tmp_path: Path) -> None:
    explanation = found.explanations[0]
    assert explanation is not None
    nowhere = replace(explanation, alternative=found.state.selection[0], other=explanation.selected * torch.nan)
    write_explanations(tmp_path, replace(found, explanations=(nowhere, None, None)))
    explained = read_explanations(tmp_path)
    assert explained is not None
    (tag,) = explained.tags.values()
    assert set(tag.boxes) == {None}
    assert {value for row in tag.other for value in row} == {0.0}


def test_without_learned_evidence_there_is_no_file(found: Localization, tmp_path: Path) -> None:
    for explanations in ((), (None, None, None)):
        write_explanations(tmp_path, replace(found, explanations=explanations))
    assert list(tmp_path.iterdir()) == []
    assert read_explanations(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": [1, 2]}, "the columns have different lengths"),
        ({"other": [[1.0, 2.0]]}, "a row has more or fewer numbers than there are parts"),
        ({"selected": [["<b>"]]}, "selected.0.0: "),
        ({"selected": [[float("inf")]]}, "selected.0.0: "),
        ({"boxes": [[1, 2, 3]]}, "boxes.0"),
        ({"more": 1}, "more: "),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    tag = {"parts": ["a"], "images": [1], "selected": [[1.0]], "other": [[1.0]], "boxes": [None]}
    (tmp_path / FILE).write_text(json.dumps({"tags": {"cat": tag | change}}))
    with pytest.raises(InputError, match=f"{FILE}: tags.cat.*{message}"):
        read_explanations(tmp_path)
