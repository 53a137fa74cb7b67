"""Invalid names, numbers, weights and files give one error message and exit status 2 before any work."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from pairloc.errors import InputError
from pairloc.formats.reading import read
from pairloc.localization.baselines.source_classifiers import SourceClassifiers
from pairloc.localization.functions import TransferScores
from pairloc.runs.localize import localize_settings
from pairloc.weights import localization_of
from runs.calling import call, copied, refused
from runs.test_attacks import arguments


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('localization.solver.name="trsw"', "localization.solver.name: there is no 'trsw'; known are "),
        ('extract.class_features="nope"', "there are no class features 'nope'; known are "),
        ('proposer.backbone="nope"', "there is no backbone 'nope'; known are "),
        ('localization.pairs.kind="nope"', "localization.pairs.kind: there is no 'nope'; known are "),
        ('transfer.pairs.kind="nope"', "transfer.pairs.kind: there is no 'nope'; known are "),
        ('methods=["best"]', "there is no method 'best'; known are "),
        ('data.source_format="nope"', "data.source_format: there is no 'nope'; known are auto, "),
        ('data.target_format="nope"', "data.target_format: there is no 'nope'; known are auto, "),
        ("preset=nope", "there is no preset 'nope'; known are "),
        ("localization.energy.alpha=inf", "localization.energy.alpha: Input should be a finite number"),
        ("localization.energy.alpha=nan", "localization.energy.alpha: Input should be a finite number"),
        ("memory=inf", "memory: Input should be a finite number"),
        ("memory=0", "memory: Input should be greater than 0"),
        ("methods=[]", "methods: Tuple should have at least 1 item"),
        ("seed=18446744073709551616", "seed: "),
        ("localization=3", "localization: Input should be a valid dictionary"),
        ("localization.energy=3", "localization.energy: Input should be a valid dictionary"),
        ("device=tpu", "device: Input should be 'auto', 'cpu', 'cuda' or 'mps'"),
    ],
)
@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_wrong_setting_is_refused_before_any_work(
    config: Path, tmp_path: Path, change: str, message: str, dry: tuple[str, ...]
) -> None:
    text = refused("run", config, "--out", tmp_path / "run", "--set", change, *dry)
    assert message in text
    assert "\n" not in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", ["scenes", "data", "weights"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("zebra,tree,1", "line 2: 'zebra' is not a class of the target"),
        ("{target},zebra,1", "line 2: 'zebra' is not a class of the source"),
        ("{target},{source},much", "line 2: similarity 'much' is not a number from 0 on"),
    ],
)
def test_a_wrong_semantic_table_is_refused_before_any_work(
    finished_run: Path, config: Path, tmp_path: Path, given: str, row: str, message: str
) -> None:
    """Whether the classes come from drawn scenes, from files or from the classifiers of weights."""
    scenes, table = finished_run / "data" / "scenes", tmp_path / "table.csv"
    target, source = read(scenes / "target_tags.csv").classes[0], read(scenes / "source.json").classes[0]
    table.write_text("target,source,similarity\n" + row.format(target=target, source=source) + "\n")
    lines = config.read_text().splitlines()
    if given != "scenes":
        start = lines.index("[data.scenes]")
        paths = {"target": scenes / "target_tags.csv", "target_images": scenes / "images"}
        paths |= {"source": scenes / "source.json", "source_images": scenes / "images"} if given == "data" else {}
        lines[start : start + 4] = ["[data]", *(f'{key} = "{path}"' for key, path in paths.items())]
    if given == "weights":
        weights = copied(finished_run, tmp_path / "weights")
        (weights / "classifiers").mkdir()
        classes = read(scenes / "source.json").classes
        image, box = torch.zeros(2, len(classes), 33).unbind()
        SourceClassifiers(classes, image.clone(), box.clone()).save(weights / "classifiers")
        lines.insert(0, f'weights = "{weights}"')
    file = tmp_path / "run.toml"
    file.write_text("\n".join(lines))
    changes = ("--set", 'methods=["tang"]', "--set", f'tang.semantic_table="{table}"')
    text = refused("run", file, "--out", tmp_path / "run", *changes)
    assert f"{table}, {message}" in text
    assert "\n" not in text
    assert not (tmp_path / "run").exists()


def test_an_unavailable_device_is_refused(config: Path, tmp_path: Path) -> None:
    assert "device 'tpu': is not available" in refused("run", config, "--out", tmp_path / "run", "--device", "tpu")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--rounds", 101, "--rounds: Input should be less than or equal to 100, not 101"),
        ("--processes", 300, "--processes: Input should be less than or equal to 256, not 300"),
        ("--workers", 257, "--workers"),
        ("--seed", 2**70, "--seed"),
        ("--seed", -1, "--seed"),
        ("--format", "nope", "data.target_format: there is no 'nope'"),
        ("--device", "tpu", "device 'tpu': is not available"),
        ("--weights", "nowhere", "nowhere: is not a folder of weights"),
    ],
)
def test_a_wrong_option_of_localize_is_named(
    finished_run: Path, tmp_path: Path, option: str, value: object, message: str
) -> None:
    text = refused(*arguments(finished_run, tmp_path / "out"), option, value)
    assert message in text
    assert not (tmp_path / "out").exists()


def test_localize_needs_a_folder_of_images(finished_run: Path, tmp_path: Path) -> None:
    tags = finished_run / "data" / "scenes" / "target_tags.csv"
    for images in (tags, tmp_path / "none"):
        text = refused("localize", images, "--tags", tags, "--out", tmp_path / "out", "--weights", finished_run)
        assert str(images) in text
    assert not (tmp_path / "out").exists()


Change = Callable[[dict[str, np.ndarray]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["unary.linear.weight"].fill(np.nan), "are not finite numbers"),
        (lambda t: t.update({"reduction.matrix": t["reduction.matrix"][:-1]}), "does not hold transfer scores"),
        (lambda t: t.update({"reduction.mean": t["reduction.mean"][None]}), "does not hold transfer scores"),
        (lambda t: t.pop("reduction.mean"), "does not hold transfer scores"),
        (lambda t: t.pop("unary.linear.weight"), "does not hold transfer scores"),
        (lambda t: t.update({"extra": np.zeros(1, np.float32)}), "does not hold transfer scores"),
    ],
)
def test_invalid_weights_are_refused(finished_run: Path, tmp_path: Path, change: Change, message: str) -> None:
    weights = copied(finished_run, tmp_path / "weights")
    file = weights / "transfer" / "transfer.safetensors"
    tensors = load_file(file)
    assert {"unary.linear.weight", "reduction.mean", "reduction.matrix"} <= set(tensors), sorted(tensors)
    change(tensors)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, file)
    with pytest.raises(InputError, match=message):
        TransferScores.load(weights / "transfer")
    text = refused(*arguments(weights, tmp_path / "out"))
    assert message in text
    assert not (tmp_path / "out").exists()


def test_weights_for_features_of_another_size_are_refused(finished_run: Path, tmp_path: Path) -> None:
    """Mean and matrix match each other, but not the features of the proposer."""
    weights = copied(finished_run, tmp_path / "weights")
    file = weights / "transfer" / "transfer.safetensors"
    tensors = load_file(file)
    tensors["reduction.mean"] = tensors["reduction.mean"][:-1].copy()
    tensors["reduction.matrix"] = tensors["reduction.matrix"][:-1].copy()
    save_file(tensors, file)
    assert "features" in refused(*arguments(weights, tmp_path / "out"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("calibration/calibration.json", "[1, 2]", "calibration.json"),
        ("calibration/calibration.json", '{"bias": 0.0, "slope": 1.0}', "slope: Extra inputs are not permitted"),
        ("calibration/calibration.json", '{"bias": NaN}', "bias: Input should be a finite number"),
        ("calibration/calibration.json", "{", "is not valid JSON"),
        ("config.json", "[]", "config.json: does not hold settings"),
        ("config.json", '{"localization": 3}', "config.json: does not hold settings"),
        ("config.json", '{"settings": {"localization": {"rounds": -1}}}', "rounds: Input should be greater than"),
        ("config.json", '{"learning": 3}', "config.json: does not hold settings"),
        ("localization.json", '{"round": 1}', "localization.json: round: Extra inputs are not permitted"),
        ("transfer/transfer.json", "[]", "transfer.json"),
        ("transfer/transfer.json", '{"steps": "many"}', "transfer.json: training.steps"),
        ("transfer/transfer.safetensors", "text", "does not hold transfer scores"),
        ("proposer/proposer.json", "[]", "proposer.json"),
        ("proposer/proposer.safetensors", "text", "proposer"),
    ],
)
def test_an_invalid_file_of_weights_is_named(
    finished_run: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    weights = copied(finished_run, tmp_path / "weights")
    (weights / name).unlink(missing_ok=True)
    (weights / name).write_text(content)
    text = refused(*arguments(finished_run, tmp_path / "out", "--weights", weights))
    assert message in text
    assert str(weights) in text


@pytest.mark.parametrize("content", ["[1, 2]", "3", '{"methods": 3}', '{"methods": {"full": [1]}, "seconds": {}}', "{"])
def test_report_refuses_an_invalid_result(finished_run: Path, tmp_path: Path, content: str) -> None:
    folder = copied(finished_run, tmp_path / "run")
    for name in ("evaluation/evaluation.json", "full/history.json"):
        before = (folder / name).read_bytes()
        (folder / name).write_text(content)
        text = refused("report", folder, "--out", tmp_path / "r.html")
        assert str(folder / name) in text
        assert not (tmp_path / "r.html").exists()
        (folder / name).write_bytes(before)
    assert call("report", folder, "--out", tmp_path / "r.html").status == 0


def test_a_report_overwrites_no_other_file(finished_run: Path, tmp_path: Path) -> None:
    page = tmp_path / "mine.html"
    page.write_text("<title>my page</title>")
    assert f"{page}: exists and is not what this command writes" in refused("report", finished_run, "--out", page)
    assert page.read_text() == "<title>my page</title>"
    (tmp_path / "folder").mkdir()
    assert "is a folder" in refused("report", finished_run, "--out", tmp_path / "folder")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "mine.html"]
    assert list((tmp_path / "folder").iterdir()) == []
    assert "is not the folder of a run" in refused("report", tmp_path / "none", "--out", tmp_path / "r.html")
    assert "config.json" in refused("report", tmp_path / "folder", "--out", tmp_path / "r.html")


def test_localize_uses_the_settings_of_the_weights_from_any_folder(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = finished_run / "data" / "scenes"
    absolute = localize_settings(scenes / "images", scenes / "target_tags.csv", weights=str(finished_run))
    monkeypatch.chdir(finished_run.parent)
    below = Path(finished_run.name) / "data" / "scenes"
    relative = localize_settings(below / "images", below / "target_tags.csv", weights=finished_run.name)
    assert relative == absolute
    assert absolute.localization == localization_of(str(finished_run))
    assert absolute.localization.rounds == 2
    changed = localize_settings(
        scenes / "images", scenes / "target_tags.csv", weights=str(finished_run), rounds=0, seed=7
    )
    assert (changed.localization.rounds, changed.localization.seed, changed.seed) == (0, 7, 7)
    assert json.loads((finished_run / "config.json").read_text())["settings"]["localization"]["rounds"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ('localization.features.kind="class"',),
            "localization.features.kind is class, but extract.class_features is none",
        ),
        (
            ('proposer.backbone="vit_tiny_patch16_224"', "proposer.pretrained=false"),
            "gives no feature maps of images of 64",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused_before_any_work(
    config: Path, tmp_path: Path, changes: tuple[str, ...], message: str
) -> None:
    arguments = [part for change in changes for part in ("--set", change)]
    assert message in refused("run", config, "--out", tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


def test_ground_truth_without_a_box_of_the_tags_is_refused_before_any_work(finished_run: Path, tmp_path: Path) -> None:
    scenes, truth, config = finished_run / "data" / "scenes", tmp_path / "truth.json", tmp_path / "run.toml"
    content = json.loads((scenes / "target_truth.json").read_text()) | {"annotations": []}
    truth.write_text(json.dumps(content))
    config.write_text(
        f'weights = "{finished_run}"\n[data]\ntarget = "{scenes / "target_tags.csv"}"\n'
        f'target_images = "{scenes / "images"}"\ntruth = "{truth}"\n'
    )
    text = refused("run", config, "--out", tmp_path / "run")
    assert "truth.json: contains no box of a tag in the tagged images" in text
    assert not (tmp_path / "run" / "bags").exists()
