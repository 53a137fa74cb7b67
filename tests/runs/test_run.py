"""Runs: results do not depend on interruptions, finished stages are skipped, invalid settings are named."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers import results
from pairloc.detector.model import Proposer
from pairloc.errors import InputError
from pairloc.evaluation.table import Evaluation
from pairloc.formats.reading import read_boxes
from pairloc.io import sha256
from pairloc.platform import locked
from pairloc.presets import read_config
from pairloc.runs.localize import localize, localize_settings
from pairloc.runs.run import Run, open_run
from pairloc.runs.runner import LOCK
from pairloc.runs.sealing import broken
from pairloc.runs.stage import keys
from runs.calling import call, copied, refused

METHODS = ("warm-up-unary", "full", "fine-tuned")
STAGES = ("data", "proposer", "bags", "transfer", "calibration", *METHODS, "evaluation", "report")
TOP = ("boxes.json", "config.json", "instances.json", "report.html", "seal.json")


def nothing(line: str) -> None:
    """Discard a log line."""


# One process per stage, killed after the work of the stage and before its record is written, and one that is killed
# between two rounds of `full`. They are forks of a process that has already imported everything.
KILLER = """
import os, signal, sys
from pathlib import Path
import torch
from pairloc.localization import methods
from pairloc.presets import read_config
from pairloc.runs import runner
from pairloc.runs.run import Run
torch.set_num_threads(1)
folder, config, *moments = sys.argv[1:]
finish, save_state = runner.finish, methods.save_state
for moment in moments:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == signal.SIGKILL, moment
        assert not (Path(folder) / moment / "done.json").exists(), moment
        continue
    def dying(folder, *rest):
        if folder.name == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return finish(folder, *rest)
    def dying_between_rounds(state, file):
        save_state(state, file)
        if moment == "rounds" and file.parent.name == "full" and state.n_iter == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    runner.finish, methods.save_state = dying, dying_between_rounds
    try:
        Run(Path(folder), read_config(Path(config)), log=lambda line: None).run()
    finally:
        os._exit(1)
"""


def test_a_run_killed_in_every_stage_gives_the_same_results(config: Path, finished_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    moments = [*STAGES[: STAGES.index("full")], "rounds", *STAGES[STAGES.index("full") :]]
    command = [sys.executable, "-c", KILLER, str(folder), str(config), *moments]
    died = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert died.returncode == 0, died.stderr[-2000:]
    assert dict(open_run(folder).plan())["report"] == "resumable"
    Run(folder, read_config(config), log=nothing).run()
    assert results(folder) == results(finished_run)
    assert not (folder / "aside").exists()


def test_finished_stages_are_skipped_and_changed_ones_run_again(config: Path, finished_run: Path) -> None:
    assert {state for _, state in Run(finished_run, read_config(config)).plan()} == {"done"}
    before = {
        file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in finished_run.rglob("*.*") if file.is_file()
    }
    lines: list[str] = []
    Run(finished_run, read_config(config), log=lines.append).run()
    assert lines == []
    now = {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in finished_run.rglob("*.*") if file.is_file()}
    written = {file.name for file in before | now if before.get(file) != now.get(file)}
    assert written == {"config.json", "seal.json"}
    plan = dict(Run(finished_run, read_config(config, ["localization.energy.alpha=0.5"])).plan())
    assert {plan[name] for name in STAGES[:4]} == {"done"}
    assert plan["full"].startswith("settings or inputs changed: ")


def test_results_are_at_the_top_of_the_folder(finished_run: Path) -> None:
    files = tuple(
        sorted(file.name for file in finished_run.iterdir() if file.is_file() and not file.name.startswith("."))
    )
    assert files == TOP
    assert {file.name for file in finished_run.iterdir() if file.is_dir()} == set(STAGES)
    for name in ("boxes.json", "instances.json"):
        assert (finished_run / name).read_bytes() == (finished_run / "fine-tuned" / name).read_bytes()
    config = json.loads((finished_run / "config.json").read_text())
    assert config["made_by"] == "pairloc run"
    assert config["settings"] == open_run(finished_run).settings.model_dump(mode="json")
    assert broken(finished_run) == []


def test_a_run_writes_its_evaluation_and_records(config: Path, finished_run: Path) -> None:
    evaluation = Run(finished_run, read_config(config), log=nothing).run()
    assert isinstance(evaluation, Evaluation)
    assert set(evaluation.methods) == set(evaluation.seconds) == set(METHODS)
    assert set(evaluation.methods["full"]) == {"0.5", "0.7"}
    assert open_run(finished_run).settings.localization.rounds == 2
    facts = json.loads((finished_run / "proposer" / "done.json").read_text())
    assert facts["seconds"] > 0
    assert facts["peak_bytes"] > 0
    assert {"command", "pairloc", "torch", "python", "device", "seed"} <= set(facts["made_with"])
    assert json.loads((finished_run / "full" / "history.json").read_text())["n_iter"] == 2
    found = {
        name: json.loads((finished_run / name).read_text())["annotations"] for name in ("boxes.json", "instances.json")
    }
    assert len(found["instances.json"]) >= len(found["boxes.json"]) > 0
    scores = [entry["score"] for entry in found["boxes.json"]]
    assert all(0 <= score <= 1 for score in scores)
    assert len(set(scores)) > 1


def test_localize_can_fine_tune_the_weights_of_a_run(finished_run: Path, tmp_path: Path) -> None:
    scenes, out = finished_run / "data" / "scenes", tmp_path / "out"
    lines: list[str] = []
    settings = localize_settings(
        scenes / "images", scenes / "target_tags.csv", weights=str(finished_run), fine_tune=True, rounds=1
    )
    tiny = open_run(finished_run).settings.fine_tune
    found = localize(settings.model_copy(update={"fine_tune": tiny}), out, "cpu", lines.append)
    assert any(line.strip().startswith("network 2 of 2") for line in lines)
    boxes, instances = (read_boxes(out / name)[1] for name in ("boxes.json", "instances.json"))
    assert len(boxes) == sum(map(len, found.target.tags)) <= len(instances)
    assert (out / "boxes.json").read_bytes() == (out / "fine-tuned" / "boxes.json").read_bytes()
    assert "re-training on the boxes found ..." in lines
    shown = json.loads((out / "report.html").read_text().split('id="data">')[1].split("</script>")[0])
    assert (shown["plain"], [method["name"] for method in shown["methods"]]) == (True, ["fine-tuned"])
    assert broken(out) == []


def test_a_second_run_in_the_same_folder_is_refused(config: Path, finished_run: Path) -> None:
    with locked(finished_run / LOCK, "held"), pytest.raises(InputError, match="another run is writing here"):
        Run(finished_run, read_config(config)).run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("localization.unknown=1", "localization.unknown: Extra inputs are not permitted"),
        ("localization.energy.unknown=1", "localization.energy.unknown: Extra inputs are not permitted"),
        ("localization.energy.alpha=-1", "localization.energy.alpha: Input should be greater than or equal to 0"),
        ("localization.safeguard=true", "safeguard needs folds = 1"),
        ("transfer.background_iou=0.9", "background_iou is above foreground_iou"),
        ("transfer.unary.tight_iou=0.5", "background_iou is not below unary.tight_iou"),
        ("data.source=x.json", "data.scenes cannot be combined with data.source"),
        ("weights=coco63", "weights cannot be combined with data.source"),
        ('methods=["fine-tuned", "full"]', "'fine-tuned' starts from the boxes of 'full'"),
        ('methods=["full", "full"]', "lists one method twice"),
        ("methods=[]", "methods: Tuple should have at least 1 item"),
        ("preset=mine", "there is no preset 'mine'; known are default, "),
        ("nonsense", "is not of the form key=value"),
        ("=3", "is not of the form key=value"),
        ("seed.x=3", "is not a valid integer|should be a valid integer"),
    ],
)
def test_invalid_settings_are_named(config: Path, change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_config(config, [change])


def test_overlapping_classes_are_refused_unless_allowed(finished_run: Path, tmp_path: Path) -> None:
    source = finished_run / "data" / "scenes" / "source.json"
    config = tmp_path / "c.toml"
    config.write_text(f'[data]\nsource = "{source}"\ntarget = "{source}"\n')
    run = Run(tmp_path / "run", read_config(config), log=nothing)
    with pytest.raises(InputError, match="classes are in both source and target"):
        run.run()
    assert not (tmp_path / "run" / "data" / "done.json").exists()
    allowed = Run(tmp_path / "run2", read_config(config, ["data.allow_overlap=true"]), log=nothing)
    allowed.stages["data"].work(allowed, tmp_path)


def test_a_class_with_one_image_is_logged(finished_run: Path, tmp_path: Path) -> None:
    scenes = finished_run / "data" / "scenes"
    names = sorted(file.name for file in (scenes / "images").glob("target*"))
    (tmp_path / "tags.csv").write_text(f"image,labels\n{names[0]},rare\n{names[1]},often\n{names[2]},often\n")
    config = tmp_path / "c.toml"
    config.write_text(
        f'[data]\nsource = "{scenes / "source.json"}"\nsource_images = "{scenes / "images"}"\n'
        f'target = "tags.csv"\ntarget_images = "{scenes / "images"}"\n'
    )
    lines: list[str] = []
    run = Run(tmp_path / "run", read_config(config), log=lines.append)
    run.stages["data"].work(run, tmp_path)
    assert lines == ["tag 'rare' has only one image, so its box cannot be compared with others"]


def test_the_command_line_plans_and_runs(config: Path, finished_run: Path) -> None:
    planned = call("run", config, "--out", finished_run, "--dry-run")
    assert planned.text.count("done") == len(STAGES)
    assert "CorLoc" not in planned.text
    shown = call("run", config, "--out", finished_run)
    assert shown.status == 0
    assert "CorLoc@0.5" in shown.text


def test_a_report_and_an_evaluation_of_a_run_from_the_command_line(finished_run: Path, tmp_path: Path) -> None:
    made = call("report", finished_run, "--out", tmp_path / "r.html", "--figures", tmp_path / "figures")
    assert "12 images" in made.text
    assert list((tmp_path / "figures").glob("*.pdf"))
    again = call("report", finished_run, "--out", tmp_path / "r.html")
    assert again.status == 0, again.text
    truth = finished_run / "data" / "scenes" / "target_truth.json"
    arguments = ["evaluate", finished_run / "full" / "boxes.json", "--truth", truth, "--iou", "0.3"]
    found = json.loads(call(*arguments, "--against", finished_run / "warm-up-unary" / "boxes.json", "--json").text)
    assert set(found["corloc"]) == set(found["against"]) == {"0.3"}
    assert (
        "12 images" in call("report", finished_run, finished_run, "--out", tmp_path / "two.html", "--embed", "0").text
    )
    assert len(list((tmp_path / "two_files").iterdir())) == 12


def test_a_folder_with_other_files_is_unchanged(config: Path, tmp_path: Path) -> None:
    (tmp_path / "bags").mkdir()
    (tmp_path / "bags" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="already contains other files"):
        Run(tmp_path, read_config(config), log=nothing).run()
    assert (tmp_path / "bags" / "mine.txt").read_text() == "mine"
    assert not (tmp_path / "data").exists()


def test_keys_do_not_depend_on_the_working_folder_and_truth_can_be_added_later(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenes = finished_run / "data" / "scenes"
    (tmp_path / "c").mkdir()
    for name in ("source.json", "target_tags.csv", "target_truth.json"):
        (tmp_path / name).write_bytes((scenes / name).read_bytes())
    file = tmp_path / "c" / "c.toml"
    file.write_text('[data]\nsource = "../source.json"\ntarget = "../target_tags.csv"\n')
    found = []
    for place, named in ((tmp_path, Path("c/c.toml")), (tmp_path / "c", Path("c.toml"))):
        monkeypatch.chdir(place)
        found.append(keys(Run(tmp_path / "run", read_config(named)).stages))
    assert found[0] == found[1]
    later = keys(Run(tmp_path / "run", read_config(file, ["data.truth=../target_truth.json"])).stages)
    assert {name for name, key in later.items() if key != found[0][name]} == {"evaluation", "report"}


def test_report_refuses_a_run_with_changed_settings(finished_run: Path, tmp_path: Path) -> None:
    folder = copied(finished_run, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["transfer"]["images"] = 29
    (folder / "config.json").write_text(json.dumps(config))
    assert "is not finished" in refused("report", folder, "--out", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_sampled_images_keep_their_tags_and_boxes(finished_run: Path) -> None:
    run = open_run(finished_run)
    drawn, dataset, truth = run.sample(5)
    assert len(dataset) == len(set(drawn)) == 5
    everything, _, all_truth = run.sample(None)
    assert everything == list(range(12))
    for index, (before, image) in enumerate(zip(drawn, dataset.images, strict=True)):
        assert image.file == run.target.images[before].file
        assert dataset.tags[index] == run.target.tags[before]
        assert np.array_equal(truth.of_image(index).boxes, all_truth.of_image(before).boxes)
        assert run.target_bags.dataset.images[before].file == image.file


def test_two_processes_give_the_same_results_as_one(config: Path, finished_run: Path, tmp_path: Path) -> None:
    """One round of `full`, with bags and transfer scores of the finished run."""
    changes = ['methods=["full"]', "localization.rounds=1"]
    for processes in (1, 2):
        folder = copied(finished_run, tmp_path / str(processes))
        run = Run(folder, read_config(config, [*changes, f"processes={processes}"]), log=nothing)
        assert type(run.executor).__name__ == ("Serial" if processes == 1 else "Processes")
        run.run()
        assert broken(folder) == []
    assert (tmp_path / "1" / "full" / "boxes.json").read_bytes() != (finished_run / "full" / "boxes.json").read_bytes()
    assert results(tmp_path / "2") == results(tmp_path / "1")


def test_boxes_can_come_from_a_class_agnostic_proposer(config: Path, tmp_path: Path) -> None:
    """The paper's ILSVRC set-up: boxes of one proposer, features of another, trained on the classes."""
    changes = ["extract.agnostic_boxes=true", "extract.proposals=30", 'methods=["warm-up"]', "calibrate=false"]
    run = Run(tmp_path / "run", read_config(config, changes), log=lambda line: None)
    assert [name for name, _ in run.plan()][1:4] == ["proposer", "agnostic-proposer", "bags"]
    assert "calibration" not in run.stages
    run.run()
    assert Proposer.load(run.folder / "agnostic-proposer").settings.class_agnostic
    assert not Proposer.load(run.folder / "proposer").settings.class_agnostic
    plan = json.loads((run.folder / "bags" / "target" / "plan.json").read_text())
    text = json.dumps(plan)
    assert sha256(run.folder / "agnostic-proposer" / "proposer.safetensors") in text
    assert sha256(run.folder / "proposer" / "proposer.safetensors") in text
