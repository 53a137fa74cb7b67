"""Presets and configurations: whole runs as TOML, each with its command, its time and the result to expect."""

import tomllib
from pathlib import Path

import pytest

from pairloc import presets
from pairloc.errors import InputError
from pairloc.presets import PRESETS, demo_settings, merged, preset, read_config, read_toml, set_value, validated
from pairloc.runs.run import Run
from pairloc.settings import (
    EnergySettings,
    FeatureSettings,
    LocalizationSettings,
    RunSettings,
    TrainingSettings,
    TransferSettings,
)
from pairloc.weights import PACKAGED, localization_of

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
FILES = {file.stem: file for file in sorted(Path(presets.__file__).parent.glob("*.toml"))}
FAST = "demo-fast"  # what `demo --fast` changes; not a preset to start from


def header(file: Path) -> list[str]:
    """The comment lines that a file opens with."""
    lines = file.read_text().splitlines()
    return lines[: next(place for place, line in enumerate(lines) if not line.startswith("#"))]


def test_there_are_the_presets_that_the_documentation_names() -> None:
    assert set(PRESETS) == {"default", "demo", "paper"} == set(FILES) - {FAST}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_valid_run(name: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'preset = "{name}"\n[data.scenes]\n')
    settings = read_config(file)
    Run(tmp_path / "run", settings)  # its names are known
    assert settings != RunSettings.model_validate({"data": {"scenes": {}}}) or name == "default"


@pytest.mark.parametrize("name", FILES)
def test_the_header_of_a_preset_says_command_time_and_result(name: str) -> None:
    lines = header(FILES[name])
    assert lines[0].startswith("# pairloc ")
    said = "\n".join(lines)
    assert "Time" in said
    assert "Result" in said or "result" in said


@pytest.mark.parametrize("name", FILES)
def test_every_key_of_a_preset_is_written_as_it_is_called(name: str) -> None:
    """A preset is checked like a user's file, where a key that moved is an error; and no key is written twice."""
    content = tomllib.loads(FILES[name].read_text())
    assert "preset" not in content
    assert name == FAST or content == preset(name)
    assert validated(merged({"data": {"scenes": {}}}, content), name)


def test_the_presets_are_what_they_say() -> None:
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
def test_configs_are_valid_and_open_with_their_command(file: Path, tmp_path: Path) -> None:
    settings = read_config(file)
    Run(tmp_path / "run", settings)
    assert settings.data.target is not None
    assert settings.data.target.is_absolute()
    lines = header(file)
    assert lines[0].startswith(f"# pairloc run configs/{file.name} --out runs/{file.stem}")
    assert "Time" in "\n".join(lines)
    assert "esult" in "\n".join(lines)


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_commands_in_headers_are_commands(file: Path) -> None:
    """Options that a header names are options of the verb it names."""
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
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known, line


def test_the_config_of_the_packaged_weights_has_the_settings_localize_uses() -> None:
    settings = read_config(ROOT / "configs" / "coco17-256-packaged.toml")
    assert settings.localization == localization_of(PACKAGED)
    assert settings.weights == PACKAGED == presets._PACKAGED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("transfer_images = 30", "transfer_images is called transfer.images now"),
        ("[learning]\nalpha = 2.0", "learning.alpha is called localization.energy.alpha now"),
        ("[learning]\nrounds = 2", "learning.rounds is called localization.rounds now"),
        ("[learning]\ninit = 'mini-problems'", "learning.init is gone: remove it"),
        ("[learning]\nrelation = 'paper'", "learning.relation is called localization.pairs.kind now"),
        ("[localization]\nrefine = 0.4", "localization.refine is called localization.boxes.voting_iou now"),
        ("[localization]\nunary = 'exact'", "localization.unary is called localization.unary.fit now"),
        ("[localization]\ntrain_pairs = false", "localization.train_pairs is gone: remove it"),
        ("[transfer]\nfeatures = 'both'", "transfer.features is called transfer.features.kind now"),
        ("[transfer]\nsteps = 3", "transfer.steps is called transfer.training.steps now"),
        ("[proposer]\nnearby = 0.1", "proposer.nearby is called proposer.min_background_iou now"),
        ("[proposer]\nshared = true", "proposer.shared is gone: remove it"),
        ("[fine_tune]\nsure = 0.5", "fine_tune.sure is called fine_tune.instance_threshold now"),
    ],
)
def test_an_old_key_gets_one_sentence_with_the_new_one(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f"{text}\n[data.scenes]\n")
    with pytest.raises(InputError, match=f"^{file}: {said} .docs/settings.md lists all keys.$"):
        read_config(file)
    with pytest.raises(InputError, match=r"now|is gone"):
        read_config(file, ["seed=3"])


def test_an_old_key_may_come_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[data.scenes]\n")
    with pytest.raises(InputError, match=r"learning\.alpha is called localization\.energy\.alpha now"):
        read_config(file, ["learning.alpha=2"])


def test_one_key_of_a_group_keeps_the_other_defaults_of_its_place(tmp_path: Path) -> None:
    """Which are not always the defaults of the group: the transfer scores see 512 components, class scores 256."""
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


def test_the_seed_goes_where_none_is_given(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("seed = 5\n[data.scenes]\n[transfer]\nseed = 7\n")
    settings = read_config(file)
    assert (settings.seed, settings.localization.seed, settings.proposer.seed, settings.mi_svm.seed) == (5, 5, 5, 5)
    assert settings.transfer.seed == 7


def test_paths_are_relative_to_the_file_weights_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "c" / "c.toml"
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "mine").mkdir()  # of that name in the working folder: not meant
    for written, meant in (("mine", tmp_path / "c" / "mine"), ("../mine", tmp_path / "mine")):
        file.write_text(f'weights = "{written}"\n[data]\ntarget = "tags.csv"\n')
        for _ in range(2):  # whether it is there or not
            settings = read_config(file)
            assert settings.weights == str(meant)
            assert settings.data.target == tmp_path / "c" / "tags.csv"
            meant.mkdir(exist_ok=True)
    file.write_text('weights = "coco63"\n[data]\ntarget = "tags.csv"\n')
    (tmp_path / "c" / "coco63").mkdir()
    assert read_config(file).weights == PACKAGED


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data = 3", "data: Input should be a valid dictionary"),
        ("data = [1]", "data: Input should be a valid dictionary"),
        ("proposer = 3\n[data.scenes]", "proposer: Input should be a valid dictionary"),
        ("localization = [1]\n[data.scenes]", "localization: Input should be a valid dictionary"),
        ("learning = 3\n[data.scenes]", "learning is called localization now"),
        ("[transfer]\nfeatures = [1]\n[data.scenes]", "transfer.features is called transfer.features.kind now"),
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
def test_a_file_of_a_wrong_shape_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        read_config(file)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"c\.toml: cannot be read"):
        read_toml(tmp_path / "c.toml")
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"c\.toml: cannot be read"):
        read_toml(tmp_path / "c.toml")
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(tmp_path)


@pytest.mark.parametrize(
    ("change", "place", "value"),
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
def test_a_change_is_toml_or_a_bare_word(change: str, place: tuple[str, ...], value: object) -> None:
    content: dict[str, object] = {}
    set_value(content, change)
    for name in place[:-1]:
        inner = content[name]
        assert isinstance(inner, dict)
        content = inner
    assert content == {place[-1]: value}
