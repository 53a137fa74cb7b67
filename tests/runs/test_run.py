"""A run: killed in any stage it ends the same; unchanged stages are skipped; contradictions are named."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pairloc.settings import DEMO, RunSettings
from pairloc.presets import demo_settings, read_config
from pairloc.formats.reading import read_boxes
from helpers import TINY_RUN as TINY
from pairloc.errors import InputError
from pairloc.runs.localize import learning_of, localize
from pairloc.runs.run import Run, open_run
from pairloc.runs.reporting import write_report
from pairloc.runs.sealing import broken
from pairloc.weights import PACKAGED

CONFIGS = Path(__file__).parents[1] / "configs"
METHODS = ("warm-up-unary", "full", "fine-tuned")
STAGES = ("data", "proposer", "bags", "transfer", "calibration", *METHODS, "evaluation")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "whole"
    Run(folder, read_config(config), say=lambda line: None).run()
    return folder


def results(folder: Path) -> dict[str, bytes]:
    return {method: (folder / method / "boxes.json").read_bytes() for method in METHODS}


# Kills the process the moment it is about to write the last file of a stage, when all its work is done but unsaid.
KILLER = """
import os, signal, sys
from pathlib import Path
from pairloc import presets as configs
from pairloc.runs import run as pipeline, staging
stage, folder, config = sys.argv[1:]
write = staging.write_json
def dying(path, content):
    if path.name == "done.json" and path.parent.name == stage:
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content)
staging.write_json = dying
pipeline.Run(Path(folder), configs.read_config(Path(config)), say=lambda line: None).run()
"""


def test_killed_in_every_stage_it_ends_with_the_same_selection(config: Path, whole: Path, tmp_path: Path) -> None:
    """One run, killed at the end of every stage in turn and gone on with each time."""
    folder = tmp_path / "run"
    for stage in STAGES:
        died = subprocess.run([sys.executable, "-c", KILLER, stage, folder, config], check=False, timeout=300)
        assert died.returncode == -signal.SIGKILL, stage
        assert not (folder / stage / "done.json").exists()
    Run(folder, read_config(config), say=lambda line: None).run()
    assert results(folder) == results(whole)


def test_a_kill_between_the_rounds(config: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    script = """
import os, signal, sys
from pathlib import Path
from pairloc.localization import methods
from pairloc import presets as configs
from pairloc.runs import run as pipeline
save = methods.save_state
def dying(state, file):
    save(state, file)
    if state.n_iter == 1:
        os.kill(os.getpid(), signal.SIGKILL)
methods.save_state = dying
pipeline.Run(Path(sys.argv[1]), configs.read_config(Path(sys.argv[2])), say=lambda line: None).run()
"""
    died = subprocess.run([sys.executable, "-c", script, folder, config], check=False, timeout=300)
    assert died.returncode == -signal.SIGKILL
    assert (folder / "full" / "state.safetensors").is_file()
    Run(folder, read_config(config), say=lambda line: None).run()
    assert results(folder) == results(whole)


def test_done_stages_are_skipped_and_changed_ones_done_again(config: Path, whole: Path) -> None:
    assert {state for _, state in Run(whole, read_config(config)).plan()} == {"done"}
    readers = [f"{part}.workers=3" for part in ("proposer", "extract", "fine_tune")]
    assert {state for _, state in Run(whole, read_config(config, readers)).plan()} == {"done"}
    before = {stage: (whole / stage / "done.json").stat().st_mtime_ns for stage in STAGES}
    lines: list[str] = []
    Run(whole, read_config(config), say=lines.append).run()
    assert lines == []
    plan = dict(Run(whole, read_config(config, ["learning.alpha=0.5"])).plan())
    assert plan["transfer"] == plan["bags"] == "done"
    assert plan["full"].startswith("to do again")
    assert {stage: (whole / stage / "done.json").stat().st_mtime_ns for stage in STAGES} == before


def test_an_evaluation_is_in_the_folder(whole: Path) -> None:
    evaluation = json.loads((whole / "evaluation" / "evaluation.json").read_text())
    assert set(evaluation["methods"]) == set(METHODS)
    assert set(evaluation["methods"]["full"]) == {"0.5", "0.7"}
    assert open_run(whole).settings.learning.rounds == 2
    facts = json.loads((whole / "proposer" / "done.json").read_text())
    assert facts["seconds"] > 0
    assert facts["peak_bytes"] > 0
    assert (whole / "full" / "history.json").is_file()
    found = {name: json.loads((whole / "fine-tuned" / name).read_text()) for name in ("boxes.json", "instances.json")}
    assert len(found["instances.json"]["annotations"]) >= len(found["boxes.json"]["annotations"]) > 0


def test_localize_with_the_weights_of_a_run_can_fine_tune_them(whole: Path, tmp_path: Path) -> None:
    scenes, out = whole / "data" / "scenes", tmp_path / "out"
    lines: list[str] = []
    found = localize(
        scenes / "images", scenes / "target_tags.csv", out, weights=str(whole), fine_tune=True, say=lines.append
    )
    assert any(line.strip().startswith("fold 2 of 2") for line in lines)
    boxes, instances = (read_boxes(out / name)[1] for name in ("boxes.json", "instances.json"))
    assert len(boxes) == sum(map(len, found.target.tags)) <= len(instances)
    assert (out / "boxes.json").read_bytes() == (out / "fine-tuned" / "boxes.json").read_bytes()
    assert broken(out) == []


def test_a_second_run_in_the_folder_refuses(config: Path, whole: Path) -> None:
    from pairloc.runs.staging import _locked

    with _locked(whole), pytest.raises(InputError, match="another run is writing here"):
        Run(whole, read_config(config)).run()


def test_the_demo_is_the_config_of_that_name() -> None:
    assert read_config(CONFIGS / "demo.toml") == demo_settings(0)
    assert RunSettings.model_validate(DEMO).learning == demo_settings(0).learning


@pytest.mark.parametrize("name", ["coco17", "coco17-256", "coco17-256-packaged", "ilsvrc100", "own-data"])
def test_configs_are_valid_and_open_with_their_command(name: str) -> None:
    path = CONFIGS / f"{name}.toml"
    assert read_config(path).data.target is not None
    assert path.read_text().startswith(f"# pairloc run configs/{name}.toml")


def test_the_config_of_the_packaged_weights_has_the_settings_localize_uses() -> None:
    settings = read_config(CONFIGS / "coco17-256-packaged.toml")
    assert settings.learning == learning_of(PACKAGED)
    assert settings.weights == PACKAGED


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("learning.unknown=1", "learning.unknown: Extra inputs are not permitted"),
        ("learning.alpha=-1", "learning.alpha: Input should be greater than or equal to 0"),
        ("learning.safeguard=true", "safeguard and folds contradict each other"),
        ("learning.train_unary=false", "train_unary and lambda2 contradict each other"),
        ("learning.train_pairs=false", "train_pairs and alpha contradict each other"),
        ("transfer.background_iou=0.9", "background_iou is above foreground_iou"),
        ("data.source=x.json", "data.scenes and data.source contradict each other"),
        ('methods=["fine-tuned", "full"]', "'fine-tuned' goes on from 'full'"),
        ('methods=["best"]', "methods.0: Input should be 'warm-up-unary', 'warm-up'"),
        ("preset=mine", "there is no preset 'mine'; known are paper, released"),
        ("nonsense", "is not of the form key=value"),
    ],
)
def test_contradictions_are_named(config: Path, change: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_config(config, [change])


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_presets_are_valid_settings(config: Path, preset: str, tmp_path: Path) -> None:
    bare = tmp_path / "bare.toml"
    bare.write_text("[data.scenes]\n")
    settings = read_config(bare, [f"preset={preset}"]).learning
    assert settings.rounds == {"paper": 5, "released": 2}[preset]
    assert settings.pair_loss == {"paper": "cross-entropy", "released": "focal"}[preset]


def test_overlapping_classes_are_refused_unless_allowed(whole: Path, tmp_path: Path) -> None:
    scenes = whole / "data" / "scenes"
    text = f"""
[data]
source = "{scenes / "source.json"}"
target = "{scenes / "source.json"}"
"""
    config = tmp_path / "c.toml"
    config.write_text(text)
    run = Run(tmp_path / "run", read_config(config), say=lambda line: None)
    run.folder.mkdir()
    with pytest.raises(InputError, match="classes are in source and target"):
        run._stage(run.stages["data"])
    allowed = Run(tmp_path / "run2", read_config(config, ["data.allow_overlap=true"]), say=lambda line: None)
    allowed.folder.mkdir()
    allowed._stage(allowed.stages["data"])


def test_a_class_with_one_picture_and_one_with_none_are_said(whole: Path, tmp_path: Path) -> None:
    scenes = whole / "data" / "scenes"
    names = sorted(file.name for file in (scenes / "images").glob("target*"))
    (tmp_path / "tags.csv").write_text(f"image,labels\n{names[0]},rare\n{names[1]},often\n{names[2]},often\n")
    config = tmp_path / "c.toml"
    config.write_text(
        f'[data]\nsource = "{scenes / "source.json"}"\nsource_images = "{scenes / "images"}"\n'
        f'target = "{tmp_path / "tags.csv"}"\ntarget_images = "{scenes / "images"}"\n'
    )
    lines: list[str] = []
    run = Run(tmp_path / "run", read_config(config), say=lines.append)
    run.folder.mkdir()
    run._stage(run.stages["data"])
    assert any("class 'rare' has one tagged picture" in line for line in lines)


def test_the_command_line_runs_it(config: Path, whole: Path) -> None:
    command = [sys.executable, "-m", "pairloc", "run", str(config), "--out", str(whole)]
    planned = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert planned.stdout.count("done") == len(STAGES)
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert "CorLoc@0.5" in shown.stdout


def test_a_report_and_an_evaluation_of_a_run_from_the_command_line(whole: Path, tmp_path: Path) -> None:
    def pairloc(*arguments: object) -> str:
        command = [sys.executable, "-m", "pairloc", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout

    assert "12 pictures" in pairloc("report", whole, "--out", tmp_path / "r.html", "--figures", tmp_path / "figures")
    assert (tmp_path / "figures" / "pictures.pdf").is_file()
    truth = whole / "data" / "scenes" / "target_truth.json"
    arguments = ["evaluate", whole / "full" / "boxes.json", "--truth", truth, "--iou", "0.3"]
    found = json.loads(pairloc(*arguments, "--against", whole / "warm-up-unary" / "boxes.json", "--json"))
    assert set(found["corloc"]) == set(found["against"]) == {"0.3"}
    scores = [entry["score"] for entry in json.loads((whole / "full" / "boxes.json").read_text())["annotations"]]
    assert all(0 <= score <= 1 for score in scores)
    two = pairloc("report", whole, whole, "--out", tmp_path / "two.html", "--embed", "0")
    assert "12 pictures" in two
    assert len(list((tmp_path / "two_files").iterdir())) == 12


def test_a_folder_that_is_not_a_runs_own_is_left_alone(config: Path, tmp_path: Path) -> None:
    (tmp_path / "bags").mkdir()
    (tmp_path / "bags" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="already holds other work"):
        Run(tmp_path, read_config(config), say=lambda line: None).run()
    assert (tmp_path / "bags" / "mine.txt").read_text() == "mine"
    assert not (tmp_path / "data").exists()


def test_a_run_is_the_same_from_any_folder_and_truth_may_come_later(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = whole / "data" / "scenes"
    (tmp_path / "c").mkdir()
    for name in ("source.json", "target_tags.csv", "target_truth.json"):
        (tmp_path / name).write_bytes((scenes / name).read_bytes())
    file = tmp_path / "c" / "c.toml"
    file.write_text('[data]\nsource = "../source.json"\ntarget = "../target_tags.csv"\n')
    keys = []
    for place, named in ((tmp_path, Path("c/c.toml")), (tmp_path / "c", Path("c.toml"))):
        monkeypatch.chdir(place)
        run = Run(tmp_path / "run", read_config(named))
        keys.append({name: run.key(stage) for name, stage in run.stages.items()})
    assert keys[0] == keys[1]
    later = Run(tmp_path / "run", read_config(file, ["data.truth=../target_truth.json"]))
    changed = {name for name, stage in later.stages.items() if later.key(stage) != keys[0][name]}
    assert changed == {"evaluation"}


def test_a_half_changed_run_gets_no_report(whole: Path, tmp_path: Path) -> None:
    changed = Run(whole, open_run(whole).settings.model_copy(update={"transfer_images": 29}))
    with pytest.raises(InputError, match="is not finished"):
        write_report([changed], tmp_path / "r.html")


def test_some_pictures_of_the_target_keep_their_tags_and_boxes(whole: Path) -> None:
    run = open_run(whole)
    target, (dataset, truth) = run.some_target(5)
    assert len(dataset) == target.transfer.count == 5
    everything, (_, all_truth) = run.some_target(None)
    assert everything is run.target_bags
    files = {image.file: index for index, image in enumerate(run.target.images)}
    for index, image in enumerate(dataset.images):
        before = files[image.file]
        assert dataset.tags[index] == run.target.tags[before]
        assert np.array_equal(truth.of_image(index).boxes, all_truth.of_image(before).boxes)
        boxes = target.transfer.boxes[index][target.transfer.valid[index]]
        assert np.array_equal(boxes.numpy(), run.target_bags.transfer.store.bag(before).boxes)
