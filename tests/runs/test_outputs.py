"""Output folders contain no other files, inputs exist and are separate, records are unchanged."""

import json
from pathlib import Path

import pytest

from pairloc.errors import InputError
from pairloc.presets import read_config
from pairloc.runs.run import Run
from pairloc.runs.sealing import broken
from pairloc.runs.stage import keys
from runs.calling import call, copied, refused


def nothing(line: str) -> None:
    """Discard a log line."""


@pytest.mark.parametrize("verb", ["propose", "detect", "study", "figures"])
def test_every_command_refuses_a_folder_with_other_files(finished_run: Path, tmp_path: Path, verb: str) -> None:
    scenes, folder = finished_run / "data" / "scenes", tmp_path / "mine"
    folder.mkdir()
    for name in ("proposer.json", "thesis.txt"):
        (folder / name).write_text("{}")
    message = refused(
        *{
            "propose": ("propose", "train", "--data", scenes / "source.json", "--out", folder),
            "detect": ("detect", "train", "--truth", scenes / "target_truth.json", "--out", folder),
            "study": ("study", "init", finished_run, "--out", folder),
            "figures": ("report", finished_run, "--out", tmp_path / "r.html", "--figures", folder),
        }[verb]
    )
    assert "already contains other files" in message
    assert sorted(file.name for file in folder.iterdir()) == ["proposer.json", "thesis.txt"]
    assert (folder / "proposer.json").read_text() == "{}"


def test_no_command_writes_through_a_link_to_a_folder(finished_run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    training = tmp_path / "training"
    training.mkdir()
    (training / "tensorboard").symlink_to(victim)
    scenes = finished_run / "data" / "scenes"
    assert "symbolic link" in refused("propose", "train", "--data", scenes / "source.json", "--out", training)
    export = ("export", finished_run / "boxes.json", "--to", "yolo", "--out", tmp_path / "yolo")
    assert call(*export).status == 0
    labels = tmp_path / "yolo" / "labels"
    labels.rename(tmp_path / "labels")
    labels.symlink_to(victim)
    assert "symbolic link" in refused(*export)
    (tmp_path / "r_files").mkdir()
    (tmp_path / "r_files" / "mine.jpg").write_text("mine")
    assert "already contains other files" in refused("report", finished_run, "--out", tmp_path / "r.html", "--embed", 0)
    assert list(victim.iterdir()) == []


def test_a_run_cannot_be_its_own_weights(finished_run: Path, tmp_path: Path) -> None:
    folder, scenes = copied(finished_run, tmp_path / "run"), finished_run / "data" / "scenes"
    message = refused(
        "localize", scenes / "images", "--tags", scenes / "target_tags.csv", "--weights", folder, "--out", folder
    )
    assert "is inside the output folder" in message
    assert broken(folder) == []


def test_an_output_inside_the_data_set_and_a_missing_input_are_refused(finished_run: Path, tmp_path: Path) -> None:
    scenes = finished_run / "data" / "scenes"
    fold = tmp_path / "fold"
    for number, tag in enumerate(("cat", "cat", "dog", "dog")):
        (fold / tag).mkdir(parents=True, exist_ok=True)
        (fold / tag / f"{number}.jpg").write_bytes(sorted((scenes / "images").glob("target*"))[number].read_bytes())
    command = (
        "localize",
        fold,
        "--tags",
        fold,
        "--format",
        "folders",
        "--weights",
        finished_run,
        "--rounds",
        0,
        "--out",
    )
    assert "is inside the data set" in refused(*command, fold / "out")
    out = tmp_path / "out"
    assert call(*command, out).status == 0
    fold.rename(tmp_path / "moved")
    assert "is not a folder; give the folder of the images" in refused(*command, out)
    assert broken(out) == []
    assert not (out / "aside").exists()


@pytest.mark.parametrize("name", ["done.json", "begun.json"])
def test_a_changed_record_counts_as_damage(config: Path, finished_run: Path, tmp_path: Path, name: str) -> None:
    folder = copied(finished_run, tmp_path / "run")
    file = folder / "full" / name
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"seconds": 9.0}) if name == "done.json" else "[]")
    assert broken(folder)
    lines: list[str] = []
    Run(folder, read_config(config), log=lines.append).run()
    assert any("(full): the earlier result is damaged" in line for line in lines)
    assert broken(folder) == []
    assert json.loads(file.read_text()) != json.loads("[]")


def test_damaged_predictions_of_a_fold_are_computed_again(config: Path, finished_run: Path, tmp_path: Path) -> None:
    folder = copied(finished_run, tmp_path / "run")
    (folder / "fine-tuned" / "done.json").unlink()
    (folder / "fine-tuned" / "fold-0.safetensors").unlink()
    (folder / "fine-tuned" / "fold-0.safetensors").write_bytes(b"no tensors")
    lines: list[str] = []
    Run(folder, read_config(config), log=lines.append).run()
    assert any("network 1 of 2" in line for line in lines)
    assert not any("network 2 of 2" in line for line in lines)
    for name in ("boxes.json", "instances.json"):
        assert (folder / "fine-tuned" / name).read_bytes() == (finished_run / "fine-tuned" / name).read_bytes()


def test_the_proposer_does_not_depend_on_the_target(finished_run: Path, tmp_path: Path) -> None:
    scenes = finished_run / "data" / "scenes"
    tags = tmp_path / "tags.csv"
    tags.write_bytes((scenes / "target_tags.csv").read_bytes())
    toml = tmp_path / "own.toml"
    toml.write_text(
        f'[data]\nsource = "{scenes / "source.json"}"\nsource_images = "{scenes / "images"}"\n'
        f'target = "tags.csv"\ntarget_images = "{scenes / "images"}"\n'
    )
    before = keys(Run(tmp_path / "run", read_config(toml)).stages)
    tags.write_text("\n".join(tags.read_text().splitlines()[:-1]) + "\n")
    after = keys(Run(tmp_path / "run", read_config(toml)).stages)
    assert after["proposer"] == before["proposer"]
    assert after["bags"] != before["bags"]
    overlap = keys(Run(tmp_path / "run", read_config(toml, ["data.allow_overlap=true"])).stages)
    assert overlap == after


def test_cache_keys_depend_on_the_files_of_the_weights(finished_run: Path, localized: Path, tmp_path: Path) -> None:
    from pairloc.runs.run import open_run

    weights = copied(finished_run, tmp_path / "weights")
    settings = open_run(localized).settings.model_copy(update={"weights": str(weights)})
    before = keys(Run(localized, settings).stages)
    for name, first in (("proposer/proposer.json", "bags"), ("transfer/transfer.json", "full")):
        text = (weights / name).read_text()
        (weights / name).write_text(text + " ")
        after = keys(Run(localized, settings).stages)
        assert after[first] != before[first], name
        assert (after["bags"] == before["bags"]) == (first == "full")
        (weights / name).write_text(text)


def test_no_command_uses_a_damaged_stage(finished_run: Path, tmp_path: Path) -> None:
    folder = copied(finished_run, tmp_path / "run")
    shard = next((folder / "bags").rglob("boxes.npy"))
    content = bytearray(shard.read_bytes())
    shard.unlink()
    content[-1] ^= 1
    shard.write_bytes(content)
    for command in (
        ("report", folder, "--out", tmp_path / "r.html"),
        ("study", "init", folder, "--out", tmp_path / "s"),
        ("tune", folder, "--out", tmp_path / "t.json"),
    ):
        assert "has changed since it was written" in refused(*command)


def test_localizer_checks_names_before_any_work(tmp_path: Path) -> None:
    from pairloc import Localizer
    from pairloc.settings import ExtractSettings, LocalizationSettings, PairSettings, SolverSettings, TransferSettings

    for options in (
        {"transfer": TransferSettings(pairs=PairSettings(kind="nope"))},
        {"localization": LocalizationSettings(solver=SolverSettings(name="trsw"))},
        {"extract": ExtractSettings(class_features="nope")},
        {"processes": 0},
    ):
        with pytest.raises(InputError):
            Localizer(device="cpu", **options)


def test_a_localizer_is_saved_into_an_empty_folder_only(finished_run: Path, tmp_path: Path) -> None:
    from pairloc import Localizer

    localizer = Localizer.load(finished_run, device="cpu")
    assert localizer.extract.proposals == 10  # the setting of the run
    with pytest.raises(InputError, match="already contains other files"):
        localizer.save(finished_run)
    localizer.save(tmp_path / "saved")
    localizer.save(tmp_path / "saved")
    assert Localizer.load(tmp_path / "saved", device="cpu").extract == localizer.extract
