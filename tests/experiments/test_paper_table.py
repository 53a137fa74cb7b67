"""The paper's main table, from the files of a run."""

import json
from pathlib import Path

import pytest

from pairloc.errors import InputError
from pairloc.evaluation.table import Evaluation
from pairloc.experiments.paper_table import as_json, as_latex, as_markdown, as_text, paper_table

EVALUATION = Evaluation.model_validate(
    {
        "methods": {
            "warm-up": {"0.5": {"mean": 0.5, "interval": [0.4, 0.6], "per_class": {}}},
            "full": {"0.5": {"mean": 0.625, "interval": [0.55, 0.7], "per_class": {}}},
            "mi-svm": {"0.5": {"mean": 0.25, "interval": [0.2, 0.3], "per_class": {}}},
        },
        "seconds": {"warm-up": 3.0, "full": 30.0, "mi-svm": 7.0},
    }
)


def write_history(folder: Path, method: str, *steps: tuple[str, float]) -> None:
    (folder / method).mkdir()
    content = {"history": [{"step": step, "seconds": seconds} for step, seconds in steps]}
    (folder / method / "history.json").write_text(json.dumps(content))


def test_times_of_training_and_inference_are_apart(tmp_path: Path) -> None:
    write_history(tmp_path, "warm-up", ("re-localize", 2.0))
    write_history(tmp_path, "full", ("re-localize", 2.0), ("re-train", 5.0), ("re-localize", 1.5), ("re-train", 4.0))
    warm_up, full, svm, supervised = paper_table(tmp_path, EVALUATION, {"full": 0.417, "supervised": 0.462})
    assert (warm_up.training, warm_up.inference, warm_up.map50) == (0.0, 2.0, None)
    assert (full.training, full.inference) == (9.0, 3.5)
    assert full.map50 == pytest.approx(41.7)
    assert (svm.training, svm.inference) == (None, 7.0)
    assert (supervised.method, supervised.corloc) == ("supervised", {})
    rows = [warm_up, full, svm, supervised]
    assert as_text(rows).splitlines()[2].split() == ["full", "62.5", "[55.0,", "70.0]", "9.0", "3.5", "41.7"]
    assert "| full | 62.5 [55.0, 70.0] | 9.0 | 3.5 | 41.7 |" in as_markdown(rows)
    assert "supervised & -- & -- & -- & 46.2 \\\\" in as_latex(rows)
    assert json.loads(json.dumps(as_json(rows)))[1]["corloc"]["0.5"] == pytest.approx([62.5, 55.0, 70.0])


def test_columns_without_values_are_left_out(tmp_path: Path) -> None:
    rows = paper_table(tmp_path, EVALUATION, {})
    assert as_markdown(rows).splitlines()[0] == "| method | CorLoc@0.5 | inference, s |"


def test_a_run_without_truth_and_unknown_methods_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ground truth"):
        paper_table(tmp_path, Evaluation(methods={}, seconds={}), {})
    with pytest.raises(InputError, match="there is no method 'fool'"):
        paper_table(tmp_path, EVALUATION, {"fool": 0.5})
