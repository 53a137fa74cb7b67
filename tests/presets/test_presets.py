"""Presets and configurations: each is a valid run and states its command, time and expected result."""

import tomllib
from pathlib import Path

import pytest

from helpers import image_file, write_json
from pairloc import presets
from pairloc.errors import InputError
from pairloc.presets import PRESETS, demo_settings, merged, preset, read_config, read_toml, set_value, validated
from pairloc.runs.run import Run
from pairloc.settings import (
    EnergySettings,
    ExtractSettings,
    FeatureSettings,
    LocalizationSettings,
    RunSettings,
    TrainingSettings,
    TransferSettings,
)
from pairloc.weights import PACKAGED, localization_of
from runs.calling import call

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
FILES = {file.stem: file for file in sorted(Path(presets.__file__).parent.glob("*.toml"))}
FAST = "demo-fast"  # the changes of `demo --fast`, not a preset


def header(file: Path) -> list[str]:
    """Return the comment lines at the top of a file."""
    lines = file.read_text().splitlines()
    return lines[: next(index for index, line in enumerate(lines) if not line.startswith("#"))]


def test_all_documented_presets_exist() -> None:
    assert set(PRESETS) == {"default", "demo", "paper", "paper-ilsvrc"} == set(FILES) - {FAST}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_valid_run(name: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'preset = "{name}"\n[data.scenes]\n')
    settings = read_config(file)
    Run(tmp_path / "run", settings)  # checks all names
    assert settings != RunSettings.model_validate({"data": {"scenes": {}}}) or name == "default"


@pytest.mark.parametrize("name", FILES)
def test_the_header_of_a_preset_gives_command_time_and_result(name: str) -> None:
    lines = header(FILES[name])
    assert lines[0].startswith("# pairloc ")
    text = "\n".join(lines)
    assert "Time" in text
    assert "Result" in text or "result" in text


@pytest.mark.parametrize("name", FILES)
def test_presets_have_no_outdated_keys(name: str) -> None:
    """A preset is validated like a user's file, in which an outdated key is an error."""
    content = tomllib.loads(FILES[name].read_text())
    start = content.pop("preset", None)  # paper-ilsvrc starts from paper
    assert start in (None, "paper")
    whole = content if start is None else merged(preset(start), content)
    assert name == FAST or whole == preset(name)
    assert validated(merged({"data": {"scenes": {}}}, whole), name)


def test_presets_have_the_documented_values() -> None:
    def read(name: str) -> RunSettings:
        return validated(merged({"data": {"scenes": {}}}, preset(name)), name)

    assert read("default").localization == LocalizationSettings()
    assert read("default").transfer == TransferSettings()
    paper = read("paper")
    assert (paper.localization.rounds, paper.localization.folds, paper.localization.solver.k) == (5, 1, 4)
    assert paper.localization.pairs.kind == paper.transfer.pairs.kind == "relation"
    assert paper.localization.training.optimizer == paper.transfer.training.optimizer == "sgd"
    assert (paper.localization.training.foreground, paper.localization.training.background) == (3, 7)
    assert paper.localization.energy.alpha_scale == "none"
    assert paper.localization.boxes.voting_iou == 0
    assert demo_settings(0) == read("demo")
    assert demo_settings(3).data.scenes == read("demo").data.scenes.model_copy(update={"seed": 3})  # type: ignore[union-attr]
    fast, slow = demo_settings(0, fast=True), demo_settings(0)
    assert fast.data.scenes is not None
    assert slow.data.scenes is not None
    assert fast.data.scenes.source_images < slow.data.scenes.source_images
    assert fast.localization.features == slow.localization.features
    assert fast.transfer.training == slow.transfer.training.model_copy(update={"steps": 200})


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_configs_are_valid_and_start_with_their_command(file: Path, tmp_path: Path) -> None:
    settings = read_config(file)
    Run(tmp_path / "run", settings)
    assert settings.data.target is not None
    assert settings.data.target.is_absolute()
    lines = header(file)
    assert lines[0].startswith(f"# pairloc run configs/{file.name} --out runs/{file.stem}")
    assert "Time" in "\n".join(lines)
    assert "esult" in "\n".join(lines)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_commands_in_headers_exist(file: Path) -> None:
    """The commands in headers exist and have the options that are used."""
    import typer

    from pairloc.cli import app

    root = typer.main.get_command(app)
    for line in header(file):
        words = line.lstrip("# ").split()
        if not words or words[0] != "pairloc":
            continue
        command, rest = root, words[1:]
        while hasattr(command, "commands"):
            command = command.commands[rest.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options, line


def test_the_config_of_the_packaged_weights_has_the_settings_localize_uses() -> None:
    settings = read_config(ROOT / "configs" / "coco17-256-packaged.toml")
    assert settings.localization == localization_of(PACKAGED)
    assert settings.weights == PACKAGED == presets._PACKAGED_WEIGHTS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("transfer_images = 30", "transfer_images is now called transfer.images: rename it"),
        ("[learning]\nalpha = 2.0", "learning.alpha is now called localization.energy.alpha: rename it"),
        ("[learning]\nrounds = 2", "learning.rounds is now called localization.rounds: rename it"),
        ("[learning]\ninit = 'mini-problems'", "learning.init no longer exists: remove it"),
        ("[learning]\nrelation = 'paper'", "learning.relation is now called localization.pairs.kind: rename it"),
        ("[localization]\nrefine = 0.4", "localization.refine is now called localization.boxes.voting_iou: rename it"),
        ("[localization]\nunary = 'exact'", "localization.unary is now called localization.unary.fit: rename it"),
        ("[localization]\ntrain_pairs = false", "localization.train_pairs no longer exists: remove it"),
        ("[transfer]\nfeatures = 'both'", "transfer.features is now called transfer.features.kind: rename it"),
        ("[transfer]\nsteps = 3", "transfer.steps is now called transfer.training.steps: rename it"),
        ("[proposer]\nnearby = 0.1", "proposer.nearby is now called proposer.min_background_iou: rename it"),
        ("[proposer]\nshared = true", "proposer.shared no longer exists: remove it"),
        ("[fine_tune]\nsure = 0.5", "fine_tune.sure is now called fine_tune.instance_threshold: rename it"),
    ],
)
def test_an_outdated_key_is_an_error_with_the_new_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"{text}\n[data.scenes]\n")
    with pytest.raises(InputError, match=f"^{file}: {message} .docs/reference/settings.md lists all keys.$"):
        read_config(file)
    with pytest.raises(InputError, match=r"is now called|no longer exists"):
        read_config(file, ["seed=3"])


def test_an_outdated_key_on_the_command_line_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[data.scenes]\n")
    with pytest.raises(InputError, match=r"learning\.alpha is now called localization\.energy\.alpha"):
        read_config(file, ["learning.alpha=2"])


def test_setting_one_key_keeps_the_other_defaults_of_its_section(tmp_path: Path) -> None:
    """The defaults of a section may differ from those of its class: dimensions are 512 in transfer, else 256."""
    file = tmp_path / "c.toml"
    file.write_text(
        '[data.scenes]\n[transfer.features]\nkind = "transfer"\n[transfer.training]\nlr = 0.5\n'
        '[localization.features]\nkind = "class"\n[localization.energy]\nalpha = 3.0\n'
    )
    settings = read_config(file)
    assert settings.transfer.features == FeatureSettings(kind="transfer", dimensions=512)
    assert settings.transfer.training == TrainingSettings(steps=600, pairs=64, lr=0.5)
    assert settings.localization.features == FeatureSettings(kind="class", dimensions=256)
    assert settings.localization.energy == EnergySettings(alpha=3.0)
    assert settings.transfer.unary == TransferSettings().unary
    changed = read_config(file, ["transfer.features.geometry=false"])
    assert changed.transfer.features == FeatureSettings(kind="transfer", dimensions=512, geometry=False)
    over = read_config(file, ["preset=demo"])
    assert over.transfer.features == FeatureSettings(kind="transfer", dimensions=128, geometry=False)
    assert over.transfer.training.pairs == 32


def test_the_seed_is_copied_to_sections_without_one(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("seed = 5\n[data.scenes]\n[transfer]\nseed = 7\n")
    settings = read_config(file)
    assert (settings.seed, settings.localization.seed, settings.proposer.seed, settings.mi_svm.seed) == (5, 5, 5, 5)
    assert settings.transfer.seed == 7


def test_paths_and_weights_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "c" / "c.toml"
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "mine").mkdir()  # a folder of the same name that must not be used
    for written, expected in (("mine", tmp_path / "c" / "mine"), ("../mine", tmp_path / "mine")):
        file.write_text(f'weights = "{written}"\n[data]\ntarget = "tags.csv"\n[snap]\nweights = "{written}.pt"\n')
        for _ in range(2):  # with and without the folder
            settings = read_config(file)
            assert settings.weights == str(expected)
            assert settings.data.target == tmp_path / "c" / "tags.csv"
            assert settings.snap.weights == expected.with_suffix(".pt")
            expected.mkdir(exist_ok=True)
    file.write_text('weights = "coco63"\n[data]\ntarget = "tags.csv"\n')
    (tmp_path / "c" / "coco63").mkdir()
    assert read_config(file).weights == PACKAGED


def test_a_run_with_weights_extracts_what_they_were_learned_from_unless_told_otherwise(tmp_path: Path) -> None:
    def extract_of(name: str) -> ExtractSettings:
        assert name == str(tmp_path / "mine")
        return ExtractSettings(class_features="none", proposals=50, unreadable="skip", batch=3)

    file = tmp_path / "c.toml"
    start = 'weights = "mine"\n[data]\ntarget = "tags.csv"\n'
    file.write_text(start)
    assert read_config(file, extract_of=extract_of).extract == ExtractSettings(class_features="none", proposals=50)
    assert read_config(file).extract == ExtractSettings()
    file.write_text(start + "[extract]\nproposals = 20\n")
    found = read_config(file, ["extract.nms=0.5"], extract_of=extract_of).extract
    assert found == ExtractSettings(class_features="none", proposals=20, nms=0.5)
    file.write_text("[data.scenes]\n")  # a source of its own
    assert read_config(file, extract_of=extract_of).extract == ExtractSettings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data = 3", "data: Input should be a valid dictionary"),
        ("data = [1]", "data: Input should be a valid dictionary"),
        ("proposer = 3\n[data.scenes]", "proposer: Input should be a valid dictionary"),
        ("localization = [1]\n[data.scenes]", "localization: Input should be a valid dictionary"),
        ("learning = 3\n[data.scenes]", "learning is now called localization: rename it"),
        (
            "[transfer]\nfeatures = [1]\n[data.scenes]",
            "transfer.features is now called transfer.features.kind: rename it",
        ),
        ('preset = ["demo"]', "there is no preset .'demo'.; known are "),
        ("preset = {a = 1}", "there is no preset a dict of 1; known are "),
        ("preset = 3", "there is no preset 3; known are "),
        ("weights = 3\n[data]\ntarget = 'x'", "weights: Input should be a valid string"),
        ("[data]\ntarget = 3", "data.target: "),
        ("x = " + 3000 * "[", "is not valid TOML"),
        ("[data.scenes]\nsize = 1979-05-27", "data.scenes.size: "),
        ("x = \x00", "is not valid TOML"),
        ("", "data: Field required"),
    ],
)
def test_an_invalid_file_is_reported_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_config(file)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"c\.toml: cannot be read"):
        read_toml(tmp_path / "c.toml")
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"c\.toml: cannot be read"):
        read_toml(tmp_path / "c.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(tmp_path)


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("a.b=0.5", ("a", "b"), 0.5),
        ("a=word", ("a",), "word"),
        ('a="a word"', ("a",), "a word"),
        ("a=[1, 2]", ("a",), [1, 2]),
        ("a=x=y", ("a",), "x=y"),
        ("a=../b c", ("a",), "../b c"),
        ("a=" + 3000 * "[", ("a",), 3000 * "["),
        ("a=", ("a",), ""),
        ("a=1\nb = 2", ("a",), 1),
    ],
)
def test_a_change_is_toml_or_an_unquoted_string(change: str, path: tuple[str, ...], value: object) -> None:
    content: dict[str, object] = {}
    set_value(content, change)
    for name in path[:-1]:
        inner = content[name]
        assert isinstance(inner, dict)
        content = inner
    assert content == {path[-1]: value}


@pytest.mark.parametrize("images", ["coco", "coco/images"])
def test_the_config_of_coco_finds_images_in_both_usual_layouts(images: str, tmp_path: Path) -> None:
    """The split command of its header, then reading source and target as the run does."""
    for split, first in (("train2017", 1), ("val2017", 100)):
        names = {"person": 1, "cat": 17}
        contents = [("person",), ("cat",), ("cat", "person")]
        content = {
            "images": [
                {"id": first + i, "file_name": f"{first + i:012d}.jpg", "width": 40, "height": 30} for i in range(3)
            ],
            "categories": [{"id": id, "name": name} for name, id in names.items()],
            "annotations": [
                {
                    "id": 10 * i + j,
                    "image_id": first + i,
                    "category_id": names[name],
                    "bbox": [1, 2, 10, 10],
                    "iscrowd": 0,
                }
                for i, shown in enumerate(contents)
                for j, name in enumerate(shown)
            ],
        }
        write_json(tmp_path / "coco" / "annotations" / f"instances_{split}.json", content)
        for i in range(3):
            image_file(tmp_path / images / split / f"{first + i:012d}.jpg")
    files = [tmp_path / "coco" / "annotations" / f"instances_{split}2017.json" for split in ("train", "val")]
    done = call("split", "coco17", "--annotations", *files, "--out", tmp_path / "coco17")
    assert done.status == 0, done.text
    (tmp_path / "configs").mkdir()
    config = tmp_path / "configs" / "coco17.toml"
    config.write_text((ROOT / "configs" / "coco17.toml").read_text())
    run = Run(tmp_path / "runs" / "coco17", read_config(config), log=lambda line: None)
    for dataset, count in ((run.source[0], 2), (run.target, 3)):
        assert len(dataset) == count
        assert all(dataset.path(index).is_file() for index in range(count))
    with pytest.raises(InputError, match="are a download: allow it with --download"):
        run.run()


@pytest.mark.parametrize("key", ["lambda1", "lambda2"])
@pytest.mark.parametrize("value", ["-0.1", "1.1", "nan", '"x"'])
def test_lambda_outside_0_to_1_is_refused(key: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[data.scenes]\n")
    with pytest.raises(InputError, match=f"localization.energy.{key}"):
        read_config(tmp_path / "c.toml", [f"localization.energy.{key}={value}"])
