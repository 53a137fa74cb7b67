"""A run: killed in any stage it ends the same; unchanged stages are skipped; contradictions are named."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers import results
from pairloc.errors import InputError
from pairloc.evaluation.table import Evaluation
from pairloc.formats.reading import read_boxes
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
    """A log that keeps quiet."""


# A process for every stage, killed the moment it is about to say that the stage is done, when all its work is; and one
# that is killed between two rounds of `full`. They are forks of one that has everything imported.
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


def test_killed_in_every_stage_and_between_rounds_it_ends_with_the_same_results(
    config: Path, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    moments = [*STAGES[: STAGES.index("full")], "rounds", *STAGES[STAGES.index("full") :]]
    command = [sys.executable, "-c", KILLER, str(folder), str(config), *moments]
    died = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert died.returncode == 0, died.stderr[-2000:]
    assert dict(open_run(folder).plan())["report"] == "resumable"
    Run(folder, read_config(config), log=nothing).run()
    assert results(folder) == results(whole)
    assert not (folder / "aside").exists()


def test_done_stages_are_skipped_and_changed_ones_done_again(config: Path, whole: Path) -> None:
    assert {state for _, state in Run(whole, read_config(config)).plan()} == {"done"}
    before = {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in whole.rglob("*.*") if file.is_file()}
    lines: list[str] = []
    Run(whole, read_config(config), log=lines.append).run()
    assert lines == []
    now = {file: (file.stat().st_mtime_ns, file.stat().st_ino) for file in whole.rglob("*.*") if file.is_file()}
    written = {file.name for file in before | now if before.get(file) != now.get(file)}
    assert written == {"config.json", "seal.json"}
    plan = dict(Run(whole, read_config(config, ["localization.energy.alpha=0.5"])).plan())
    assert {plan[name] for name in STAGES[:4]} == {"done"}
    assert plan["full"].startswith("settings or inputs changed: ")


def test_a_run_leaves_its_results_at_the_top_of_the_folder(whole: Path) -> None:
    files = tuple(sorted(file.name for file in whole.iterdir() if file.is_file() and not file.name.startswith(".")))
    assert files == TOP
    assert {file.name for file in whole.iterdir() if file.is_dir()} == set(STAGES)
    for name in ("boxes.json", "instances.json"):
        assert (whole / name).read_bytes() == (whole / "fine-tuned" / name).read_bytes()
    config = json.loads((whole / "config.json").read_text())
    assert config["made_by"] == "pairloc run"
    assert config["settings"] == open_run(whole).settings.model_dump(mode="json")
    assert broken(whole) == []


def test_an_evaluation_is_in_the_folder(config: Path, whole: Path) -> None:
    evaluation = Run(whole, read_config(config), log=nothing).run()
    assert isinstance(evaluation, Evaluation)
    assert set(evaluation.methods) == set(evaluation.seconds) == set(METHODS)
    assert set(evaluation.methods["full"]) == {"0.5", "0.7"}
    assert open_run(whole).settings.localization.rounds == 2
    facts = json.loads((whole / "proposer" / "done.json").read_text())
    assert facts["seconds"] > 0
    assert facts["peak_bytes"] > 0
    assert {"command", "pairloc", "torch", "python", "device", "seed"} <= set(facts["made_with"])
    assert json.loads((whole / "full" / "history.json").read_text())["n_iter"] == 2
    found = {name: json.loads((whole / name).read_text())["annotations"] for name in ("boxes.json", "instances.json")}
    assert len(found["instances.json"]) >= len(found["boxes.json"]) > 0
    scores = [entry["score"] for entry in found["boxes.json"]]
    assert all(0 <= score <= 1 for score in scores)
    assert len(set(scores)) > 1


def test_localize_with_the_weights_of_a_run_can_fine_tune_them(whole: Path, tmp_path: Path) -> None:
    scenes, out = whole / "data" / "scenes", tmp_path / "out"
    lines: list[str] = []
    settings = localize_settings(
        scenes / "images", scenes / "target_tags.csv", weights=str(whole), fine_tune=True, rounds=1
    )
    tiny = open_run(whole).settings.fine_tune
    found = localize(settings.model_copy(update={"fine_tune": tiny}), out, "cpu", lines.append)
    assert any(line.strip().startswith("network 2 of 2") for line in lines)
    boxes, instances = (read_boxes(out / name)[1] for name in ("boxes.json", "instances.json"))
    assert len(boxes) == sum(map(len, found.target.tags)) <= len(instances)
    assert (out / "boxes.json").read_bytes() == (out / "fine-tuned" / "boxes.json").read_bytes()
    assert "re-training on the boxes found ..." in lines
    shown = json.loads((out / "report.html").read_text().split('id="data">')[1].split("</script>")[0])
    assert (shown["plain"], [method["name"] for method in shown["methods"]]) == (True, ["fine-tuned"])
    assert broken(out) == []


def test_a_second_run_in_the_folder_refuses(config: Path, whole: Path) -> None:
    with locked(whole / LOCK, "held"), pytest.raises(InputError, match="another run is writing here"):
        Run(whole, read_config(config)).run()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("localization.unknown=1", "localization.unknown: Extra inputs are not permitted"),
        ("localization.energy.unknown=1", "localization.energy.unknown: Extra inputs are not permitted"),
        ("localization.energy.alpha=-1", "localization.energy.alpha: Input should be greater than or equal to 0"),
        ("localization.safeguard=true", "safeguard and folds contradict each other"),
        ("transfer.background_iou=0.9", "background_iou is above foreground_iou"),
        ("transfer.unary.tight_iou=0.5", "background_iou is not below unary.tight_iou"),
        ("data.source=x.json", "data.scenes and data.source contradict each other"),
        ("weights=coco63", "weights and data.source contradict each other"),
        ('methods=["fine-tuned", "full"]', "'fine-tuned' goes on from 'full'"),
        ('methods=["full", "full"]', "names one method twice"),
        ("methods=[]", "methods: Tuple should have at least 1 item"),
        ("preset=mine", "there is no preset 'mine'; known are default, "),
        ("nonsense", "is not of the form key=value"),
        ("=3", "is not of the form key=value"),
        ("seed.x=3", "is not a valid integer|should be a valid integer"),
    ],
)
def test_contradictions_are_named(config: Path, change: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_config(config, [change])


def test_overlapping_classes_are_refused_unless_allowed(whole: Path, tmp_path: Path) -> None:
    source = whole / "data" / "scenes" / "source.json"
    config = tmp_path / "c.toml"
    config.write_text(f'[data]\nsource = "{source}"\ntarget = "{source}"\n')
    run = Run(tmp_path / "run", read_config(config), log=nothing)
    with pytest.raises(InputError, match="classes are in source and target"):
        run.run()
    assert not (tmp_path / "run" / "data" / "done.json").exists()
    allowed = Run(tmp_path / "run2", read_config(config, ["data.allow_overlap=true"]), log=nothing)
    allowed.stages["data"].work(allowed, tmp_path)


def test_a_class_with_one_image_is_said(whole: Path, tmp_path: Path) -> None:
    scenes = whole / "data" / "scenes"
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
    assert lines == ["class 'rare' has one tagged image: there is nothing to compare it with"]


def test_the_command_line_runs_it(config: Path, whole: Path) -> None:
    planned = call("run", config, "--out", whole, "--dry-run")
    assert planned.text.count("done") == len(STAGES)
    assert "CorLoc" not in planned.text
    shown = call("run", config, "--out", whole)
    assert shown.status == 0
    assert "CorLoc@0.5" in shown.text


def test_a_report_and_an_evaluation_of_a_run_from_the_command_line(whole: Path, tmp_path: Path) -> None:
    made = call("report", whole, "--out", tmp_path / "r.html", "--figures", tmp_path / "figures")
    assert "12 images" in made.text
    assert list((tmp_path / "figures").glob("*.pdf"))
    again = call("report", whole, "--out", tmp_path / "r.html")
    assert again.status == 0, again.text
    truth = whole / "data" / "scenes" / "target_truth.json"
    arguments = ["evaluate", whole / "full" / "boxes.json", "--truth", truth, "--iou", "0.3"]
    found = json.loads(call(*arguments, "--against", whole / "warm-up-unary" / "boxes.json", "--json").text)
    assert set(found["corloc"]) == set(found["against"]) == {"0.3"}
    assert "12 images" in call("report", whole, whole, "--out", tmp_path / "two.html", "--embed", "0").text
    assert len(list((tmp_path / "two_files").iterdir())) == 12


def test_a_folder_that_is_not_a_runs_own_is_left_alone(config: Path, tmp_path: Path) -> None:
    (tmp_path / "bags").mkdir()
    (tmp_path / "bags" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="already holds other work"):
        Run(tmp_path, read_config(config), log=nothing).run()
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
    found = []
    for place, named in ((tmp_path, Path("c/c.toml")), (tmp_path / "c", Path("c.toml"))):
        monkeypatch.chdir(place)
        found.append(keys(Run(tmp_path / "run", read_config(named)).stages))
    assert found[0] == found[1]
    later = keys(Run(tmp_path / "run", read_config(file, ["data.truth=../target_truth.json"])).stages)
    assert {name for name, key in later.items() if key != found[0][name]} == {"evaluation", "report"}


def test_a_half_changed_run_gets_no_report(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "run")
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["transfer"]["images"] = 29
    (folder / "config.json").write_text(json.dumps(config))
    assert "is not finished" in refused("report", folder, "--out", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_some_images_of_the_target_keep_their_tags_and_boxes(whole: Path) -> None:
    run = open_run(whole)
    drawn, dataset, truth = run.sample(5)
    assert len(dataset) == len(set(drawn)) == 5
    everything, _, all_truth = run.sample(None)
    assert everything == list(range(12))
    for index, (before, image) in enumerate(zip(drawn, dataset.images, strict=True)):
        assert image.file == run.target.images[before].file
        assert dataset.tags[index] == run.target.tags[before]
        assert np.array_equal(truth.of_image(index).boxes, all_truth.of_image(before).boxes)
        assert run.target_bags.dataset.images[before].file == image.file


def test_two_processes_give_the_results_of_one(config: Path, whole: Path, tmp_path: Path) -> None:
    """One round of `full` on bags and weights that are there."""
    changes = ['methods=["full"]', "localization.rounds=1"]
    for processes in (1, 2):
        folder = copied(whole, tmp_path / str(processes))
        run = Run(folder, read_config(config, [*changes, f"processes={processes}"]), log=nothing)
        assert type(run.executor).__name__ == ("Serial" if processes == 1 else "Processes")
        run.run()
        assert broken(folder) == []
    assert (tmp_path / "1" / "full" / "boxes.json").read_bytes() != (whole / "full" / "boxes.json").read_bytes()
    assert results(tmp_path / "2") == results(tmp_path / "1")
