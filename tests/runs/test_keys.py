"""Cache keys: which settings repeat a stage, and what happens to results of other settings."""

from pathlib import Path

import pytest

from pairloc.presets import read_config
from pairloc.runs import runner, stage
from pairloc.runs.run import Run, open_run
from pairloc.runs.sealing import broken
from pairloc.runs.stage import keys, record_of
from runs.calling import call, copied, title

STAGES = (
    "data", "proposer", "bags", "transfer", "calibration", "warm-up-unary", "full", "fine-tuned", "evaluation",
    "report",
)  # fmt: skip


def nothing(line: str) -> None:
    """Discard a log line."""


def changed(config: Path, change: str) -> set[str]:
    """Return the stages whose key changes with a setting."""
    before, now = (keys(Run(Path("none"), read_config(config, list(changes))).stages) for changes in ((), (change,)))
    return {name for name, key in now.items() if before[name] != key}


@pytest.mark.parametrize(
    "change",
    [
        "processes=2", "memory=1.5", "device=cpu", "proposer.workers=3", "extract.workers=3", "fine_tune.workers=3",
        "extract.batch=4", "extract.shard=7", "extract.unreadable=skip",
    ],
)  # fmt: skip
def test_settings_without_effect_change_no_key(config: Path, change: str) -> None:
    assert changed(config, change) == set()


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ("data.scenes.seed=1", "data"),
        ("proposer.lr=0.002", "proposer"),
        ("extract.proposals=9", "bags"),
        ("transfer.training.steps=9", "transfer"),
        ("localization.energy.alpha=0.5", "calibration"),
        ("fine_tune.weight=1.0", "fine-tuned"),
    ],
)
def test_a_setting_changes_the_keys_of_its_stage_and_the_later_ones(config: Path, change: str, first: str) -> None:
    assert changed(config, change) == set(STAGES[STAGES.index(first) :])


def test_settings_of_an_unused_method_change_no_key(config: Path) -> None:
    assert changed(config, "mi_svm.rounds=3") == set()


def test_an_upgrade_of_the_package_keeps_every_stage(
    config: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(finished_run, tmp_path / "run")
    monkeypatch.setattr(stage, "__version__", "9.9.9")
    run = Run(folder, read_config(config), log=lambda line: pytest.fail(line))
    assert {state for _, state in run.plan()} == {"done"}
    run.run()
    assert broken(folder) == []
    record = record_of(folder / "full")
    assert record is not None
    assert record.made_with["pairloc"] != "9.9.9"
    again = Run(folder, read_config(config, ["fine_tune.weight=1.0"]), log=nothing)
    again.run()
    redone = record_of(folder / "fine-tuned")
    assert redone is not None
    assert redone.made_with["pairloc"] == "9.9.9"  # the version is recorded, so the first half of this test can fail


def contents(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_results_of_other_settings_are_kept_aside_and_reused(config: Path, finished_run: Path, tmp_path: Path) -> None:
    """Changing settings and back deletes nothing and trains nothing twice; `clean` removes only kept results."""
    folder = copied(finished_run, tmp_path / "run")
    other = read_config(config, ["proposer.lr=0.002"])
    before = contents(finished_run)
    lines: list[str] = []
    Run(folder, other, log=lines.append).run()
    why = "the earlier result was made with other settings or inputs"
    assert f"{title('proposer')}: {why}; it is kept in {folder / 'aside'}" in lines
    aside = {name.rpartition("-")[0]: folder / "aside" / name for name in runner.set_aside_size(folder)[0]}
    kept = set(STAGES[1:-2])  # evaluation and report are cheap, data does not change
    assert set(aside) == kept
    for name in kept:
        assert contents(aside[name]) == contents(finished_run / name), name
    changed_proposer = (folder / "proposer" / "proposer.safetensors").read_bytes()
    assert changed_proposer != before["proposer/proposer.safetensors"]
    assert broken(folder) == []
    back = Run(folder, read_config(config), log=lines.append)
    plan = dict(back.plan())
    assert {plan[name] for name in kept} == {"kept aside, will be restored"}
    assert plan["data"] == "done"
    lines.clear()
    back.run()
    assert not any(
        line.endswith(" ...") for line in lines if not line.startswith((title("evaluation"), title("report")))
    )
    assert f"{title('proposer')}: reusing the earlier result with these settings" in lines
    now = contents(folder)
    for name in kept:
        stage_files = {file: content for file, content in now.items() if file.startswith(f"{name}/")}
        assert stage_files == {file: content for file, content in before.items() if file.startswith(f"{name}/")}, name
    times = [(run / "proposer" / "done.json").stat().st_mtime_ns for run in (folder, finished_run)]
    assert times[0] == times[1]
    assert now["boxes.json"] == before["boxes.json"]
    assert broken(folder) == []
    lines.clear()
    Run(folder, other, log=lines.append).run()  # the other settings again
    assert (folder / "proposer" / "proposer.safetensors").read_bytes() == changed_proposer
    assert f"{title('proposer')} ..." not in lines
    Run(folder, read_config(config), log=nothing).run()

    names, size = runner.set_aside_size(folder)
    assert len(names) == len(kept)
    answer = call("clean", folder)
    assert f"{len(names)} results are kept aside in {folder / 'aside'}, {size / 1e6:.1f} MB" in answer.text
    assert answer.status != 0  # the question got no answer
    assert (folder / "aside").is_dir()
    assert call("clean", folder, "--yes").status == 0
    assert not (folder / "aside").exists()
    after = contents(folder)
    assert set(after) == {file for file in now if not file.startswith("aside/")}
    assert all(after[file] == now[file] for file in after if file.split("/")[0] in kept)
    assert "nothing is kept aside" in call("clean", folder, "--yes").text
    assert {state for _, state in open_run(folder).plan()} == {"done"}
    refused = call("clean", tmp_path, "--yes")
    assert (refused.status, "is not a run" in refused.text) == (2, True)


def test_unfinished_stages_are_kept_aside_and_resumed(config: Path, finished_run: Path, tmp_path: Path) -> None:
    """A killed training is resumed, and is not preferred to a result that is finished later."""
    folder = copied(finished_run, tmp_path / "run")
    (folder / "full" / "done.json").unlink()
    state = (folder / "full" / "state.safetensors").read_bytes()
    other = read_config(config, ["localization.boxes.voting_iou=0.5"])
    lines: list[str] = []
    Run(folder, other, log=lines.append).run()
    assert any(
        line.startswith(f"{title('full')}: the earlier result was made with other settings or inputs") for line in lines
    )
    lines.clear()
    Run(folder, read_config(config), log=lines.append).run()
    assert f"{title('full')}: reusing the earlier result with these settings" in lines
    assert f"{title('full')} ..." in lines
    assert not any("re-trained on the boxes" in line for line in lines)  # its rounds were already done
    assert (folder / "full" / "state.safetensors").read_bytes() == state
    lines.clear()
    for settings in (other, read_config(config)):
        Run(folder, settings, log=lines.append).run()
    assert f"{title('full')} ..." not in lines


def test_an_unfinished_stage_with_other_inputs_is_not_resumed(config: Path, finished_run: Path, tmp_path: Path) -> None:
    folder = copied(finished_run, tmp_path / "run")
    (folder / "full" / "done.json").unlink()
    begun = stage.begun_of(folder / "full")
    assert begun is not None
    stage.begin(folder / "full", begun.key, begun.inputs | {"bags": "others"})
    lines: list[str] = []
    Run(folder, read_config(config), log=lines.append).run()
    assert any("was started from results that have been recomputed" in line for line in lines)
    assert (folder / "full" / "boxes.json").read_bytes() == (finished_run / "full" / "boxes.json").read_bytes()


def test_the_content_of_backbone_weights_is_part_of_the_key(config: Path, tmp_path: Path) -> None:
    found = []
    for content in (b"one", b"other"):
        (tmp_path / "weights.safetensors").write_bytes(content)
        settings = read_config(config, [f"proposer.backbone_weights={tmp_path / 'weights.safetensors'}"])
        found.append(keys(Run(Path("none"), settings).stages)["proposer"])
    assert found[0] != found[1]
