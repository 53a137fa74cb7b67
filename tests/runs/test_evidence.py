"""Evidence of a source of one's own: what plays is never taught, small sources say so, interruptions cost nothing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import TINY, TINY_RUN, plain_settings, plain_transfer
from pairloc import Localizer
from pairloc.curation.drawings import SOURCE
from pairloc.curation.scenes import write_scenes
from pairloc.curation.splits import Annotated, restrict
from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.model import Proposer
from pairloc.detector.training import train
from pairloc.errors import InputError
from pairloc.experiments import tuning
from pairloc.formats.reading import read_annotated
from pairloc.localization.combination import Combination
from pairloc.localization.confidence import Calibration
from pairloc.localization.engine import localize_target
from pairloc.localization.learned import Learned
from pairloc.presets import read_config
from pairloc.runs import evidence, learning
from pairloc.runs.evidence import draw_playing, never_taught, play_target, weigh_evidence
from pairloc.runs.learning import Teacher
from pairloc.runs.localize import localize, localize_settings
from pairloc.runs.run import Run, open_run
from pairloc.runs.sealing import broken
from pairloc.runs.stage import keys
from pairloc.settings import EvidenceSettings, ExtractSettings, SceneSettings
from pairloc.weights import PACKAGED, weights_folder
from runs.calling import call, copied

TEACHER = Teacher(
    TINY.model_copy(update={"held_out": 0.0}),
    ExtractSettings(proposals=20, class_features="none", unreadable="skip"),
    plain_transfer(steps=5, pairs="cosine"),
)
SETTINGS = plain_settings(
    folds=2, rounds=1, features={"kind": "transfer"}, unary={"combination": "learned", "fit": "exact"},
    energy={"lambda1": 1.0}, solver={"k": 2, "iterations": 10},
)  # fmt: skip
CHANGES = (
    'methods=["full"]', 'localization.unary.combination="learned"', "localization.rounds=1", "extract.proposals=20",
    "evidence.images=40", "evidence.draws=2",
)  # fmt: skip


def nothing(line: str) -> None:
    """Discard a log line."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Annotated:
    """Scenes with up to 18 classes; the size of the images is unknown, as in some formats."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("source")
    write_scenes(folder, SceneSettings(source_images=60, target_images=1, size=64))
    dataset, truth = read_annotated(folder / "source.json")
    return replace(dataset, images=tuple(replace(image, size=None) for image in dataset.images)), truth


@pytest.fixture(autouse=True)
def few_objects_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_MIN_OBJECTS", 2)


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> list[Annotated]:
    """Everything that a proposer is trained on from now on."""
    seen: list[Annotated] = []

    def recorded(dataset: Dataset, truth: GroundTruth, *arguments: object, **options: object) -> Proposer:
        seen.append((dataset, truth))
        return train(dataset, truth, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(learning, "train", recorded)
    return seen


def tagged(counts: dict[str, int]) -> Dataset:
    """A data set with so many images of every class, one class each."""
    tags = tuple((label,) for label, count in enumerate(counts.values()) for _ in range(count))
    images = tuple(Image(index, f"{index}.jpg", None) for index in range(len(tags)))
    return Dataset(images, tuple(counts), tags)


def classes_of(source: Annotated, names: tuple[str, ...]) -> Annotated:
    """A source restricted to some classes."""
    dataset, truth = source
    labels = [dataset.classes.index(name) for name in names]
    shows = np.array([bool(set(tags) & set(labels)) for tags in dataset.tags])
    return restrict(dataset, truth, shows, labels)


@pytest.mark.parametrize(("classes", "asked", "together"), [(6, 17, 2), (18, 17, 6), (63, 17, 17), (7, 1, 1)])
def test_a_third_of_the_classes_plays_at_most_and_all_play_before_one_plays_twice(
    classes: int, asked: int, together: int
) -> None:
    dataset = tagged({f"class {label}": 2 for label in range(classes)})
    draws = draw_playing(dataset, EvidenceSettings(classes=asked, draws=40))
    assert {len(draw) for draw in draws} == {together}
    assert all(len(set(draw)) == len(draw) for draw in draws)
    times = np.zeros(classes)
    for draw in draws:
        times[draw] += 1
        assert times.max() - times.min() <= 1
    assert draw_playing(dataset, EvidenceSettings(classes=asked, draws=2)) == draws[:2]  # more draws change none
    assert draw_playing(dataset, EvidenceSettings(classes=asked, draws=40, seed=1)) != draws


def test_few_classes_play_alone_and_one_class_does_not_play() -> None:
    assert draw_playing(tagged({"a": 2, "b": 1, "c": 5, "d": 2}), EvidenceSettings()) == [[0], [2], [3]]
    assert draw_playing(tagged(dict.fromkeys("abcde", 3)), EvidenceSettings()) == [[0], [1], [2], [3], [4]]
    assert draw_playing(tagged({"a": 1, "b": 9}), EvidenceSettings()) == []
    assert draw_playing(tagged({"a": 9}), EvidenceSettings()) == []
    assert draw_playing(tagged({}), EvidenceSettings()) == []


@pytest.mark.parametrize("agnostic", [False, True])
def test_nothing_that_plays_is_taught(
    source: Annotated, tmp_path: Path, taught: list[Annotated], agnostic: bool
) -> None:
    """Of every draw the training sees neither its images nor a box or the name of one of its classes."""
    teacher = replace(TEACHER, extract=TEACHER.extract.model_copy(update={"agnostic_boxes": agnostic}))
    lines: list[str] = []
    play_target(source, EvidenceSettings(images=30, draws=2), teacher, tmp_path, lines.append)
    draws = draw_playing(source[0], EvidenceSettings(draws=2))
    assert len(taught) == 2 * (1 + agnostic)
    assert len(lines) == 2
    for number, playing in enumerate(draws, start=1):
        part, names = tmp_path / f"draw-{number}", {source[0].classes[label] for label in playing}
        bags = read_bags(part)
        assert set(bags.classes) == names
        for dataset, truth in taught[(number - 1) * (1 + agnostic) : number * (1 + agnostic)]:
            assert set(dataset.classes) == set(source[0].classes) - names
            assert not {image.file for image in dataset.images} & {image.file for image in bags.images}
            for index, image in enumerate(dataset.images):
                whole = source[1].of_image([entry.file for entry in source[0].images].index(image.file))
                kept = whole.where(~np.isin(whole.label, playing))
                assert np.array_equal(truth.of_image(index).boxes, kept.boxes)
        learned = Learned.load(part)
        assert learned.known is not None
        assert not set(learned.known.names) & names
        assert not (part / "source").exists()
    combination, calibration = weigh_evidence(
        source, EvidenceSettings(images=30, draws=2), teacher, SETTINGS, [tmp_path], lines.append
    )
    played = sorted({source[0].classes[label] for playing in draws for label in playing})
    assert combination.learned_on == ", ".join(played)
    assert calibration is not None


def read_bags(part: Path) -> Dataset:
    from pairloc.bags.store import BagStore

    return BagStore(part / "playing").dataset


def fallback(source: Annotated, settings: EvidenceSettings, folder: Path) -> str:
    """The line that says why evidence is weighed as in the packaged weights."""
    lines: list[str] = []
    play_target(source, settings, TEACHER, folder, nothing)
    combination, calibration = weigh_evidence(source, settings, TEACHER, SETTINGS, [folder], lines.append)
    assert calibration is None
    assert combination == Combination.load(weights_folder(PACKAGED) / "evidence")
    assert lines[-1].endswith(", so evidence is weighed as in the packaged weights")
    return lines[-1]


def test_a_small_source_takes_the_packaged_combination_and_says_why(
    source: Annotated, tmp_path: Path, taught: list[Annotated], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = classes_of(source, ("house",))
    assert "has too few classes with two or more images" in fallback(one, EvidenceSettings(), tmp_path / "one")
    monkeypatch.setattr(evidence, "_MIN_OBJECTS", 1000)
    assert "tags (1000 are needed)" in fallback(source, EvidenceSettings(), tmp_path / "small")
    assert taught == []  # nothing was trained in vain
    monkeypatch.setattr(evidence, "_MIN_OBJECTS", 12)
    bad = source[0], replace(source[1], boxes=source[1].boxes * 0 + [0, 0, 1, 1])
    why = fallback(bad, EvidenceSettings(images=30), tmp_path / "bad")
    assert "proposals cover the object of only 0 tags" in why or "are needed" in why
    assert len(taught) == 1


def test_a_class_that_plays_alone_cannot_judge_itself(source: Annotated, tmp_path: Path) -> None:
    why = fallback(source, EvidenceSettings(classes=1, images=60), tmp_path)
    assert why.startswith("no class but ")


def test_two_classes_play_one_after_the_other(source: Annotated, tmp_path: Path, taught: list[Annotated]) -> None:
    two = classes_of(source, ("house", "tree"))
    lines: list[str] = []
    play_target(two, EvidenceSettings(), TEACHER, tmp_path, lines.append)
    assert [dataset.classes for dataset, _ in taught] == [("tree",), ("house",)]
    assert lines == ["playing classes, draw 1 of 2: house", "playing classes, draw 2 of 2: tree"]
    for split, (dataset, _) in zip(evidence._splits(two, EvidenceSettings()), taught, strict=True):
        assert () in split.target[0].tags  # images without the class
        assert not {image.file for image in split.target[0].images} & {image.file for image in dataset.images}


def test_held_classes_leave_something_to_train_on(source: Annotated, tmp_path: Path, taught: list[Annotated]) -> None:
    many = replace(TEACHER, proposer=TEACHER.proposer.model_copy(update={"held_classes": 17}))
    play_target(source, EvidenceSettings(images=10), many, tmp_path, nothing)
    assert Proposer.load(tmp_path / "draw-1" / "proposer").settings.held_classes == len(taught[0][0].classes) - 1


def test_unreadable_playing_images_teach_nothing(source: Annotated, tmp_path: Path) -> None:
    settings = EvidenceSettings(images=40)
    folder = Path(shutil.copytree(source[0].path(0).parent, tmp_path / "images"))
    copy = replace(source[0], folder=folder, images=tuple(replace(i, file=Path(i.file).name) for i in source[0].images))
    split = evidence._splits((copy, source[1]), settings)[0]
    for index in np.flatnonzero(~split.cluttered).tolist():  # all of the clean ones
        split.target[0].path(index).write_bytes(b"no image")
    play_target((copy, source[1]), settings, TEACHER, tmp_path / "played", nothing)
    lines: list[str] = []
    combination, _ = weigh_evidence((copy, source[1]), settings, TEACHER, SETTINGS, [tmp_path / "played"], lines.append)
    assert set(combination.learned_on.split(", ")) <= set(split.target[0].classes)
    assert lines[0].endswith("sets of images: 2")  # none of clean images


@pytest.fixture(scope="module")
def weights(source: Annotated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that were taught 12 of the 18 classes, one of them by another name."""
    folder = tmp_path_factory.mktemp("weights")
    part = classes_of(source, source[0].classes[:12])
    named = replace(part[0], classes=("Houses", *part[0].classes[1:]))
    TEACHER.train((named, part[1]), folder)
    bags = TEACHER.source_bags((named, part[1]), folder, folder / "bags")
    TEACHER.scores((named, part[1]), bags, folder).save(folder)
    return folder


def test_weights_that_were_never_taught_some_classes_replace_the_training(
    source: Annotated, weights: Path, tmp_path: Path, taught: list[Annotated]
) -> None:
    settings = EvidenceSettings(weights=weights, images=60)
    never = source[0].classes[12:]
    assert [source[0].classes[label] for label in never_taught(source[0].classes, weights)] == list(never)
    play_target(source, settings, TEACHER, tmp_path, nothing)
    combination, _ = weigh_evidence(source, settings, TEACHER, SETTINGS, [tmp_path], nothing)
    assert set(combination.learned_on.split(", ")) <= set(never)
    assert taught == []
    alone = classes_of(source, never)  # nothing of this source was taught, and nothing has to be
    play_target(alone, settings, TEACHER, tmp_path / "alone", nothing)
    combination, _ = weigh_evidence(alone, settings, TEACHER, SETTINGS, [tmp_path / "alone"], nothing)
    assert set(combination.learned_on.split(", ")) <= set(never)


def test_weights_that_were_taught_everything_are_refused_before_any_work(
    source: Annotated, weights: Path, tmp_path: Path, taught: list[Annotated]
) -> None:
    known = classes_of(source, source[0].classes[:3])
    localizer = Localizer(evidence=EvidenceSettings(weights=weights), device="cpu")
    with pytest.raises(InputError, match=r"^[^\n]*: was taught every class of the source, so none can play"):
        localizer.fit(known)
    assert taught == []
    (tmp_path / "tiny.toml").write_text(TINY_RUN)
    for place, message in (("nowhere", "nowhere: is not a folder of weights"), (weights, "was taught every class")):
        settings = read_config(tmp_path / "tiny.toml", [*CHANGES, f"evidence.weights={place}"])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(InputError, match=message):
            patch.setattr(evidence, "known_class", lambda name, names: 0)
            Run(tmp_path / "run", settings, log=nothing).run()
        assert not (tmp_path / "run").exists()


def test_a_proposer_that_names_no_classes_cannot_tell_what_plays(source: Annotated, tmp_path: Path) -> None:
    agnostic = replace(TEACHER, proposer=TEACHER.proposer.model_copy(update={"class_agnostic": True}))
    agnostic.train(source, tmp_path)
    (tmp_path / "transfer").mkdir()
    with pytest.raises(InputError, match="its proposer names no classes"):
        never_taught(source[0].classes, tmp_path)


# The stages of a run


@pytest.mark.parametrize("names", [("house", "tree"), tuple(SOURCE)])
def test_draws_do_not_depend_on_each_other(source: Annotated, tmp_path: Path, names: tuple[str, ...]) -> None:
    """Few classes, which play alone, all belong to the first draw; a further draw changes no earlier one."""
    some = classes_of(source, tuple(name for name in names if name in source[0].classes))
    for draws, folder in ((1, tmp_path / "1"), (2, tmp_path / "2")):
        settings = EvidenceSettings(images=20, draws=draws)
        for draw in range(1, draws + 1):
            play_target(some, settings, TEACHER, folder / str(draw), nothing, draw=draw)
    first, second, third = (
        {file.relative_to(tmp_path / part) for file in (tmp_path / part).rglob("*.json")}
        for part in ("1/1", "2/1", "2/2")
    )
    assert first == second
    assert {file.parts[0] for file in first} == ({"draw-1", "draw-2"} if len(names) == 2 else {"draw-1"})
    assert {file.parts[0] for file in third} == (set() if len(names) == 2 else {"draw-2"})
    name = "draw-1/proposer/proposer.safetensors"
    assert (tmp_path / "1" / "1" / name).read_bytes() == (tmp_path / "2" / "1" / name).read_bytes()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings of the tiny run."""
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY_RUN)
    return path


@pytest.fixture(scope="module")
def finished(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run that learned its evidence in two draws."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run") / "finished"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evidence, "_MIN_OBJECTS", 2)
        Run(folder, read_config(config, CHANGES), log=nothing).run()
    return folder


def test_a_run_learns_its_evidence(config: Path, finished: Path) -> None:
    run = Run(finished, read_config(config, CHANGES))
    stages = (
        "data", "proposer", "bags", "transfer", "playing", "playing-2", "evidence", "calibration", "full", "evaluation",
        "report",
    )  # fmt: skip
    assert run.plan() == [(name, "done") for name in stages]
    assert broken(finished) == []
    combination = Combination.load(finished / "evidence")
    assert combination is not None
    assert set(combination.learned_on.split(", ")) <= set(SOURCE)
    assert run.learned.combination == combination
    assert run.learned.calibration == Calibration.load(finished / "evidence")
    assert (finished / "full" / "explanations.json").is_file()


def moment(folder: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the next run before it extracts the playing bags of the second draw, or before it has weighed."""
    bags = Teacher.bags

    def interrupted(teacher: Teacher, dataset: Dataset, proposers: Path, out: Path) -> object:
        if out.parts[-2:] == ("draw-2", "playing"):
            raise KeyboardInterrupt
        return bags(teacher, dataset, proposers, out)

    def never(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    if stage == "playing-2":
        monkeypatch.setattr(Teacher, "bags", interrupted)
    else:
        monkeypatch.setattr(evidence, "learn_evidence", never)


def test_an_interrupted_stage_resumes_and_trains_nothing_twice(
    config: Path, finished: Path, tmp_path: Path, taught: list[Annotated]
) -> None:
    folder = copied(finished, tmp_path / "run")
    for name in ("playing", "playing-2", "evidence", "calibration", "full", "evaluation", "report"):
        shutil.rmtree(folder / name)
    settings, trained = read_config(config, CHANGES), []
    for stage in ("playing-2", "evidence"):
        with pytest.MonkeyPatch.context() as patch:
            moment(folder, stage, patch)
            with pytest.raises(KeyboardInterrupt):
                Run(folder, settings, log=nothing).run()
        assert dict(Run(folder, settings).plan())[stage] == "resumable"
        trained.append(len(taught))
    lines: list[str] = []
    Run(folder, settings, log=lines.append).run()
    assert trained == [2, 3]  # the second draw was trained, and its finished training is read again
    assert len(taught) == 3
    assert not any("epoch" in line for line in lines)
    for file in ("evidence/combination.json", "calibration/calibration.json", "full/boxes.json"):
        assert (folder / file).read_bytes() == (finished / file).read_bytes(), file
    assert not (folder / "aside").exists()


def test_a_run_serves_as_weights_with_its_own_combination(finished: Path, tmp_path: Path) -> None:
    scenes, lines = finished / "data" / "scenes", list[str]()
    settings = localize_settings(scenes / "images", scenes / "target_tags.csv", weights=str(finished))
    localize(settings, tmp_path / "out", "cpu", lines.append)
    assert not any("no learned combination" in line for line in lines)
    assert (tmp_path / "out" / "boxes.json").read_bytes() != b""
    found, own = (json.loads((folder / "full" / "boxes.json").read_text()) for folder in (tmp_path / "out", finished))
    assert [entry["bbox"] for entry in found["annotations"]] == [entry["bbox"] for entry in own["annotations"]]
    assert [entry["score"] for entry in found["annotations"]] == [entry["score"] for entry in own["annotations"]]


def test_a_run_from_before_there_was_evidence_is_opened_and_used_as_before(finished: Path, tmp_path: Path) -> None:
    folder = copied(finished, tmp_path / "old")
    for name in ("playing", "playing-2", "evidence"):
        shutil.rmtree(folder / name)
    content = json.loads((folder / "config.json").read_text())
    del content["settings"]["evidence"]
    (folder / "config.json").write_text(json.dumps(content))
    run, scenes, lines = open_run(folder), folder / "data" / "scenes", list[str]()
    assert run.settings.evidence == EvidenceSettings()
    states = dict(run.plan())
    assert {states[name] for name in ("data", "proposer", "bags", "transfer")} == {"done"}
    assert states["playing"] == "pending"
    settings = localize_settings(scenes / "images", scenes / "target_tags.csv", weights=str(folder))
    localize(settings, tmp_path / "out", "cpu", lines.append)
    assert any("no learned combination of evidence, so scores are mixed" in line for line in lines)


def changed(config: Path, change: str, *also: str) -> set[str]:
    """The stages whose key changes with a setting."""
    before, now = (
        keys(Run(Path("none"), read_config(config, [*CHANGES, *also, *more])).stages) for more in ((), (change,))
    )
    return {name for name, key in now.items() if before.get(name) != key}


PLAYING = {"playing", "playing-2"}
AFTER = {"evidence", "calibration", "full", "evaluation", "report"}


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ("evidence.draws=3", {"playing-3"} | AFTER),  # the other draws remain
        ("evidence.seed=3", PLAYING | AFTER),
        ("localization.energy.alpha=0.7", AFTER),  # trains nothing
        ("fine_tune.weight=1.0", set()),
        ("memory=2.0", set()),
        ("extract.workers=2", set()),
        ("proposer.lr=0.1", {"proposer", "bags", "transfer"} | PLAYING | AFTER),
        ("extract.proposals=9", {"bags", "transfer"} | PLAYING | AFTER),
        ("transfer.training.steps=9", {"transfer"} | PLAYING | AFTER),
    ],
)
def test_a_setting_repeats_what_depends_on_it(config: Path, change: str, stages: set[str]) -> None:
    assert changed(config, change) == stages


def test_stages_are_planned_only_where_evidence_is_weighed(config: Path) -> None:
    def planned(*changes: str) -> set[str]:
        return set(Run(Path("none"), read_config(config, [*CHANGES, *changes])).stages)

    assert {"playing", "evidence", "calibration"} <= planned()
    assert not {"playing", "evidence"} & planned('localization.unary.combination="mixed"')
    assert not {"playing", "evidence"} & planned('methods=["mi-svm"]')
    assert "calibration" not in planned("calibrate=false")
    assert {"playing", "evidence"} <= planned("calibrate=false")


def test_the_content_of_the_weights_is_part_of_the_key_and_their_place_is_not(
    config: Path, weights: Path, tmp_path: Path
) -> None:
    def key(folder: Path) -> str:
        return keys(Run(Path("none"), read_config(config, [*CHANGES, f"evidence.weights={folder}"])).stages)["playing"]

    other = Path(shutil.copytree(weights, tmp_path / "other", copy_function=shutil.copy))
    assert key(other) == key(weights)
    (other / "notes.txt").write_text("mine")
    assert key(other) == key(weights)
    (other / "transfer" / "transfer.safetensors").write_bytes(b"others")
    assert key(other) != key(weights)
    assert key(Path("coco63")) != key(Path("none"))  # packaged weights have a name, not a path


def test_tune_weighs_evidence_as_the_run_does(
    config: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def recorded(*arguments: Any, **options: Any) -> object:
        used.append(arguments[2].combination)
        return localize_target(*arguments, **options)

    monkeypatch.setattr(tuning, "localize_target", recorded)
    search = ((("localization.energy.alpha", (1.0,), "warm-up"),), nothing)
    monkeypatch.setattr(tuning.tune, "__defaults__", search)
    tune = ("--out", tmp_path / "tuned.json", "--classes", 3, "--draws", 1)
    assert "mixed scores" not in call("tune", finished, *tune).text
    assert used == [Combination.load(finished / "evidence")]
    folder = copied(finished, tmp_path / "unfinished")
    (folder / "evidence" / "done.json").unlink()
    assert "all values are compared with mixed scores" in call("tune", folder, *tune).text
    assert used[1] is None


def test_what_earlier_settings_left_behind_is_not_used(config: Path, finished: Path) -> None:
    def learned(*changes: str) -> Learned:
        return Run(finished, read_config(config, [*CHANGES, *changes]), log=nothing).learned

    assert learned().combination is not None
    assert learned('localization.unary.combination="mixed"').combination is None
    assert learned("calibrate=false").calibration == Calibration()
    assert learned("calibrate=false").combination == learned().combination


def test_fit_learns_evidence_and_keeps_it_with_the_weights(source: Annotated, tmp_path: Path) -> None:
    def localizer(images: int) -> Localizer:
        return Localizer(
            proposer=TEACHER.proposer, extract=TEACHER.extract, transfer=TEACHER.transfer, device="cpu",
            evidence=EvidenceSettings(images=images), localization=SETTINGS,
        )  # fmt: skip

    lines: list[str] = []
    fitted = localizer(40).fit(source, log=lines.append)
    assert lines[0].startswith("playing classes, draw 1 of 1: ")
    fitted.save(tmp_path / "kept")
    combination = Combination.load(tmp_path / "kept" / "evidence")
    assert combination is not None
    assert set(combination.learned_on.split(", ")) <= set(source[0].classes)
    paths, tags = [source[0].path(index) for index in range(4)], [source[0].names(index) for index in range(4)]
    found = fitted.localize(paths, [[f"new {name}" for name in names] for names in tags])
    again = Localizer.load(tmp_path / "kept", device="cpu").localize(paths, [[f"new {n}" for n in t] for t in tags])
    assert np.array_equal(found.boxes.boxes, again.boxes.boxes)
    assert found.explain(0, found.dataset.names(0)[0])
    lines.clear()
    localizer(40).fit(classes_of(source, ("house",)), log=lines.append)
    assert lines[-1].endswith("so evidence is weighed as in the packaged weights")
