"""The paper's main table, from the files of a run."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from helpers import plain, plain_settings, plain_transfer, planted_store, planted_truth
from pairloc.bags.store import BagStore
from pairloc.errors import InputError
from pairloc.evaluation.table import Evaluation
from pairloc.evaluation.table import as_text as table_text
from pairloc.experiments.paper_table import Row, as_json, as_latex, as_markdown, as_text, paper_table
from pairloc.localization.engine import learn_classifiers, learn_source, localize_target
from pairloc.localization.learned import Learned
from pairloc.localization.methods import METHODS
from pairloc.localization.result import Localization
from pairloc.runs.results import write_result
from pairloc.settings import RunSettings

EVALUATION = Evaluation.model_validate(
    {
        "methods": {
            "warm-up": {"0.5": {"mean": 0.5, "interval": [0.4, 0.6], "per_class": {}}},
            "full": {"0.5": {"mean": 0.625, "interval": [0.55, 0.7], "per_class": {}}},
            "fine-tuned": {"0.5": {"mean": 0.75, "interval": [0.7, 0.8], "per_class": {}}},
            "mi-svm": {"0.5": {"mean": 0.25, "interval": [0.2, 0.3], "per_class": {}}},
        },
        "seconds": {"warm-up": 3.0, "full": 30.0, "fine-tuned": 60.0, "mi-svm": 7.0},
    }
)


def write_history(folder: Path, method: str, *steps: tuple[str, float]) -> None:
    (folder / method).mkdir()
    content = {"history": [{"step": step, "seconds": seconds} for step, seconds in steps]}
    (folder / method / "history.json").write_text(json.dumps(content))


def test_times_of_training_and_inference_are_apart(tmp_path: Path) -> None:
    write_history(tmp_path, "warm-up", ("re-localize", 2.0))
    of_full = (("re-localize", 2.0), ("re-train", 5.0), ("re-localize", 1.5), ("re-train", 4.0))
    write_history(tmp_path, "full", *of_full)
    write_history(tmp_path, "fine-tuned", *of_full)  # continues `full`
    write_history(tmp_path, "mi-svm")  # made before baselines recorded their half steps
    warm_up, full, fine_tuned, svm, supervised = paper_table(tmp_path, EVALUATION, {"full": 0.417, "supervised": 0.462})
    assert (warm_up.training, warm_up.inference, warm_up.map50) == (0.0, 2.0, None)
    assert (full.training, full.inference) == (9.0, 3.5)
    assert full.map50 == pytest.approx(41.7)
    assert (fine_tuned.training, fine_tuned.inference) == (69.0, 3.5)
    assert (svm.training, svm.inference) == (None, None)
    assert (supervised.method, supervised.corloc) == ("supervised", {})
    rows = [warm_up, full, svm, supervised]
    assert as_text(rows).splitlines()[2].split() == ["full", "62.5", "[55.0,", "70.0]", "9.0", "3.5", "41.7"]
    assert "| full | 62.5 [55.0, 70.0] | 9.0 | 3.5 | 41.7 |" in as_markdown(rows)
    assert r"full & 62.5 [55.0, 70.0] & 9.0 & 3.5 & 41.7 \\" in as_latex(rows)
    assert "| warm-up | 50.0 [40.0, 60.0] | 0.0 | 2.0 |  |" in as_markdown(rows)
    assert "supervised & -- & -- & -- & 46.2 \\\\" in as_latex(rows)
    assert json.loads(json.dumps(as_json(rows)))[1]["corloc"]["0.5"] == pytest.approx([62.5, 55.0, 70.0])


def test_boxes_of_a_segmenter_stand_apart(tmp_path: Path) -> None:
    """It was trained on masks; its time is that of inference, after that of the method it continues."""
    snapped = {"0.5": {"mean": 0.7, "interval": [0.6, 0.8], "per_class": {}}}
    content = EVALUATION.model_dump() | {"ceiling": {"@0.5": 0.9}}
    content["methods"]["snapped"], content["seconds"]["snapped"] = snapped, 40.0
    evaluation = Evaluation.model_validate(content)
    write_history(tmp_path, "full", ("re-localize", 2.0), ("re-train", 5.0))
    write_history(tmp_path, "snapped", ("re-localize", 2.0), ("re-train", 5.0))
    rows = paper_table(tmp_path, evaluation, {})
    assert (rows[-1].method, rows[-1].training, rows[-1].inference) == ("snapped", 5.0, 42.0)
    assert "| snapped (segmenter) | 70.0 [60.0, 80.0] | 5.0 | 42.0 |" in as_markdown(rows)
    lines = table_text(evaluation).splitlines()
    assert [line.split()[0] for line in lines[-4:]] == ["mi-svm", "best", "with", "snapped"]
    assert lines[-2] == "with a segmenter that was trained on masks:"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[BagStore, Learned]:
    store, shown = planted_store(tmp_path_factory.mktemp("planted") / "s", bags=18)
    truth = planted_truth(store, shown)
    return store, learn_classifiers(store, truth, learn_source(store, truth, plain_transfer(steps=5)))


def localized(planted: tuple[BagStore, Learned], method: str, folder: Path) -> tuple[Localization, Row]:
    """Run a method on planted bags; return its result and its row of the table."""
    store, learned = planted
    features = {"features": plain("class")}
    groups = {"mi_svm": {"rounds": 2, "folds": 2, **features}, "deselaers": {"rounds": 2, **features}}
    run = RunSettings.model_validate({"data": {"scenes": {}}, "localization": plain_settings(), **groups})
    found = localize_target(store, store.dataset, learned, METHODS[method].section(run), method=method)
    write_result(folder / method, found)
    (row,) = paper_table(folder, Evaluation.model_validate({"methods": {method: {}}, "seconds": {}}), {})
    return found, row


@pytest.mark.parametrize("method", METHODS)
def test_every_method_records_its_training_and_its_inference(
    planted: tuple[BagStore, Learned], method: str, tmp_path: Path
) -> None:
    found, row = localized(planted, method, tmp_path)
    assert row.inference is not None
    assert row.inference > 0
    assert row.training is not None
    assert (row.training > 0) == (method not in ("warm-up-unary", "warm-up"))
    assert next(step for step in found.history if step.step == "re-localize").changed == 18
    assert sum(step.seconds for step in found.history) == pytest.approx(row.training + row.inference)


TRAINERS = {"mi-svm": "mi_svm.train_svm", "deselaers": "deselaers.train_svm"}
TRAINERS |= {name: f"{name}.target_classifiers" for name in ("lsda", "tang")}


@pytest.mark.parametrize("method", TRAINERS)
def test_learning_of_a_baseline_is_not_inference(
    planted: tuple[BagStore, Learned], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that runs only while it learns, inference takes no time."""
    file, name = TRAINERS[method].split(".")
    module = importlib.import_module(f"pairloc.localization.baselines.{file}")
    train, calls = getattr(module, name), list[int]()

    def trainer(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return train(*arguments, **options)

    monkeypatch.setattr(module, name, trainer)
    monkeypatch.setattr("pairloc.localization.baselines.half_steps.time.perf_counter", lambda: float(len(calls)))
    _, row = localized(planted, method, tmp_path)
    assert (row.training, row.inference) == (len(calls), 0.0)
    assert calls


def test_columns_without_values_are_left_out(tmp_path: Path) -> None:
    rows = paper_table(tmp_path, EVALUATION, {})
    assert as_markdown(rows).splitlines()[0] == "| method | CorLoc@0.5 |"


def test_a_run_without_truth_and_unknown_methods_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no ground truth"):
        paper_table(tmp_path, Evaluation(methods={}, seconds={}), {})
    with pytest.raises(InputError, match="there is no method 'fool'"):
        paper_table(tmp_path, EVALUATION, {"fool": 0.5})
