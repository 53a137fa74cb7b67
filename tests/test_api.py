"""Localizer gives the same boxes and the same confidence as the command line."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pairloc
from helpers import TINY, TINY_RUN
from pairloc import Localization, Localizer, evaluate, read
from pairloc.curation.scenes import write_scenes
from pairloc.datasets.tagging import tagged
from pairloc.detector.model import Proposer, build
from pairloc.errors import InputError
from pairloc.formats.reading import read_annotated
from pairloc.localization.confidence import Calibration, confidence, plain_signals
from pairloc.presets import read_config
from pairloc.runs.run import Run
from pairloc.settings import ExtractSettings, LocalizationSettings, SceneSettings, TransferSettings
from pairloc.weights import localization_of
from runs.calling import call

Images = tuple[list[Path], list[tuple[str, ...]]]
CURVE = Calibration(bias=-1.0, scale=0.6)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run, to take weights and settings from."""
    import torch

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("api")
    (folder / "tiny.toml").write_text(TINY_RUN)
    settings = read_config(folder / "tiny.toml", ['methods=["full"]', "localization.energy.alpha=2.5"])
    Run(folder / "run", settings, log=lambda line: None).run()
    CURVE.save(folder / "run" / "calibration")  # so few images would give the default
    return folder / "run"


@pytest.fixture(scope="module")
def images(run: Path) -> Images:
    dataset = read(run / "data" / "scenes" / "target_tags.csv")
    return [dataset.path(i) for i in range(len(dataset))], [dataset.names(i) for i in range(len(dataset))]


@pytest.fixture(scope="module")
def found(run: Path, images: Images) -> Localization:
    return Localizer.load(run, device="cpu").localize(*images)


def rows(content: dict[str, Any], *, names: bool = True) -> list[tuple[object, ...]]:
    """The annotations of a COCO file with names instead of ids: image, tag, box, score."""
    file = {entry["id"]: Path(entry["file_name"]).name for entry in content["images"]}
    tag = {entry["id"]: entry["name"] for entry in content["categories"]}
    return [
        (file[entry["image_id"]] if names else "", tag[entry["category_id"]], entry["bbox"], entry["score"])
        for entry in content["annotations"]
    ]


@pytest.fixture(scope="module")
def boxes_file(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of `pairloc localize` on the same images with the same weights."""
    scenes, out = run / "data" / "scenes", tmp_path_factory.mktemp("cli") / "out"
    command = ("localize", scenes / "images", "--tags", scenes / "target_tags.csv", "--out", out, "--weights", run)
    status, text = call(*command)
    assert status == 0, text
    return out / "boxes.json"


def test_the_command_line_finds_the_same_boxes_with_the_same_confidence(found: Localization, boxes_file: Path) -> None:
    from_cli = json.loads(boxes_file.read_text())
    from_api = json.loads(json.dumps(found.to_coco()))
    assert rows(from_api) == rows(from_cli)
    scores = [row[3] for row in rows(from_api)]
    assert len(set(scores)) > 3
    assert all(isinstance(score, float) and 0 < score < 1 for score in scores)
    sizes = [
        {Path(e["file_name"]).name: (e["width"], e["height"]) for e in part["images"]} for part in (from_api, from_cli)
    ]
    assert sizes[0] == sizes[1]


def test_the_confidence_uses_the_calibration_stored_with_the_weights(found: Localization) -> None:
    signs = zip(found.agreement, found.state.gaps, strict=True)
    expected = np.concatenate([confidence(CURVE, plain_signals(agreement, gaps)).numpy() for agreement, gaps in signs])
    np.testing.assert_array_equal(found.boxes.score, expected.round(4))


def test_evaluate_is_the_corloc_of_the_command_line(run: Path, found: Localization, boxes_file: Path) -> None:
    truth = run / "data" / "scenes" / "target_truth.json"
    from_cli = json.loads(call("evaluate", boxes_file, "--truth", truth, "--iou", 0.2, "--json").text)["corloc"]["0.2"]
    result = evaluate(found, truth, iou=0.2)
    assert 0 < result.mean < 1
    assert result.mean == pytest.approx(from_cli["mean"])
    assert evaluate(found, read_annotated(truth), iou=0.2) == result


def test_the_order_of_images_does_not_matter_to_evaluate(run: Path, images: Images) -> None:
    """Images are matched by path, not by position. Unary scores do not depend on the other images."""
    truth = run / "data" / "scenes" / "target_truth.json"
    localizer = Localizer.load(run, device="cpu")
    plain = localizer.localize(*images, method="warm-up-unary")
    backwards = localizer.localize(images[0][::-1], images[1][::-1], method="warm-up-unary")
    values = [evaluate(result, truth, iou=0.1) for result in (plain, backwards)]
    assert 0 < values[0].mean < 1
    assert values[0].per_class == values[1].per_class


def test_the_settings_of_a_run_are_used_unless_others_are_given(run: Path) -> None:
    assert Localizer.load(run).localization == localization_of(str(run))
    assert Localizer.load(str(run)).localization.energy.alpha == 2.5
    other = LocalizationSettings(rounds=0)
    assert Localizer.load(run, localization=other).localization == other
    assert Localizer.load(run).proposer.head == 32
    assert Localizer.load(run).transfer.pairs.kind == "relation"


def test_an_unreadable_image_is_left_out_and_named(run: Path, images: Images, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    paths = [images[0][0], bad, *images[0][1:4]]
    tags = ["cup", "cup", *["cup"] * 3]
    found = Localizer.load(run, localization=LocalizationSettings(rounds=0), device="cpu").localize(paths, tags)
    assert len(found.unreadable) == 1
    assert str(bad) in found.unreadable[0]
    assert [len(image.boxes) for image in found] == [1, 0, 1, 1, 1]
    assert all(np.isfinite(found.boxes.score))


def test_fit_localize_save_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pairloc.api.calibrate", lambda *arguments, **options: CURVE
    )  # so few images would give the default
    write_scenes(tmp_path, SceneSettings(size=64, source_images=40, target_images=8))
    dataset = read(tmp_path / "target_tags.csv")
    extract = ExtractSettings(proposals=8, class_features="none", unreadable="skip")
    settings = LocalizationSettings.model_validate(
        {"rounds": 1, "folds": 2, "features": {"kind": "transfer", "dimensions": 0}, "solver": {"k": 2}}
    )
    localizer = Localizer(
        proposer=TINY.model_copy(update={"held_out": 0.05}),
        extract=extract,
        transfer=TransferSettings.model_validate(
            {"foreground_iou": 0.5, "features": {"kind": "transfer", "dimensions": 0}}
        ),
        localization=settings,
        device="cpu",
    )
    paths = [dataset.path(i) for i in range(len(dataset))]
    tags = [dataset.names(i) for i in range(len(dataset))]
    with pytest.raises(InputError, match="learned nothing yet"):
        localizer.localize(paths, tags)
    with pytest.raises(InputError, match="learned nothing yet"):
        localizer.save(tmp_path / "kept")
    assert localizer.fit(tmp_path / "source.json") is localizer
    found = localizer.localize(paths, tags)
    assert len(found) == 8
    assert len(found.boxes) == sum(map(len, tags))
    first = next(iter(found))
    assert sorted(box.tag for box in first.boxes) == sorted(tags[0])
    assert first.size == (64, 64)
    localizer.save(tmp_path / "kept")
    again = Localizer.load(tmp_path / "kept", extract=extract, device="cpu")
    assert again.localization == settings  # saved with the weights
    assert Calibration.load(tmp_path / "kept" / "calibration") == CURVE
    mapping = {str(p): t for p, t in zip(paths, tags, strict=True)}
    other = again.localize([str(p) for p in paths], mapping)
    assert other.boxes.boxes.tobytes() == found.boxes.boxes.tobytes()
    assert other.boxes.score.tobytes() == found.boxes.score.tobytes()
    by_path = again.localize(paths, dict(zip(paths, tags, strict=True)), method="warm-up-unary")
    assert len(by_path.boxes) == len(found.boxes)
    status, text = call(
        "localize", dataset.folder, "--tags", tmp_path / "target_tags.csv", "--out", tmp_path / "out",
        "--weights", tmp_path / "kept",
    )  # fmt: skip
    assert status == 0, text


@pytest.mark.parametrize(
    ("images", "tags", "message"),
    [
        (["a.jpg", "b.jpg", "c.jpg"], "cat", "tags is a single string, 'cat'"),
        (["a.jpg"], None, "tags is None"),
        (["a.jpg"], 3, "tags is 3"),
        (["a.jpg"], [3], "a.jpg: its tags are 3"),
        (["a.jpg"], [None], "a.jpg: its tags are None"),
        (["a.jpg"], [["cat", 3]], "a.jpg: its tags are "),
        (["a.jpg"], [["cat", " "]], "a.jpg: its tags are "),
        (["a.jpg"], [b"cat"], "a.jpg: its tags are "),
        (["a.jpg", "b.jpg"], [["cat"]], "2 images but 1 entries of tags"),
        (["a.jpg", "b.jpg"], [[], []], "no image has a tag"),
        ([], [], "no image has a tag"),
        (["a.jpg"], {"b.jpg": "cat"}, "tags has no entry for any of the images"),
        (["a.jpg"], {3: "cat"}, "tags contains 3, which is not a path"),
        ([None], ["cat"], "images contains None, which is not a path"),
        ([3], ["cat"], "images contains 3, which is not a path"),
        ("a.jpg", ["cat"], "images is one path; give a list of paths"),
        (Path("a.jpg"), ["cat"], "images is one path; give a list of paths"),
    ],
)
def test_invalid_images_and_tags_are_refused(images: Any, tags: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tagged(images, tags)


@pytest.mark.parametrize(
    "tags",
    [
        ["cat", ("cat", "dog")],
        [{"cat"}, ["dog", "cat", "cat"]],
        {"a.jpg": "cat", Path("b.jpg"): ["cat", "dog"], "unused.jpg": "cow"},
        [" cat", ("cat ", "dog")],
    ],
)
def test_tags_are_accepted_in_several_forms(tags: Any) -> None:
    dataset = tagged(["a.jpg", Path("b.jpg")], tags)
    assert dataset.classes == ("cat", "dog")
    assert dataset.tags == ((0,), (0, 1))
    assert dataset.path(1) == Path("b.jpg").absolute()


def test_unknown_devices_and_methods_are_refused(run: Path) -> None:
    calls: list[Callable[[], object]] = [lambda: Localizer(device="tpu"), lambda: Localizer.load(run, device="tpu")]
    for make in calls:
        with pytest.raises(InputError, match="device 'tpu': is not available; use cpu"):
            make()
    with pytest.raises(InputError, match="there is no method 'best'"):
        Localizer.load(run).localize(["a.jpg"], ["cat"], method="best")
    with pytest.raises(InputError, match="'mi-svm' is a baseline with its own settings"):
        Localizer.load(run).localize(["a.jpg"], ["cat"], method="mi-svm")
    with pytest.raises(InputError, match="is not a folder of weights"):
        Localizer.load("nowhere")


def test_ground_truth_of_other_images_is_refused(found: Localization, tmp_path: Path) -> None:
    truth = tmp_path / "truth.json"
    truth.write_text(
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "other.jpg", "width": 64, "height": 64}],
                "categories": [{"id": 1, "name": name} for name in found.dataset.classes][:1],
                "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5], "iscrowd": 0}],
            }
        )
    )
    with pytest.raises(InputError, match="no image in common"):
        evaluate(found, truth)


def test_the_package_exports_exactly_the_public_names() -> None:
    assert pairloc.__all__ == ["Localization", "Localizer", "evaluate", "read"]
    assert Localizer.__module__ == evaluate.__module__ == "pairloc.api"
    assert Localization.__module__ == "pairloc.localization.result"
    assert read.__module__ == "pairloc.formats.reading"
    assert isinstance(Localizer, type)
    assert set(pairloc.__all__) <= set(dir(pairloc))
    with pytest.raises(AttributeError):
        pairloc.Nothing  # noqa: B018


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, pairloc; heavy = ('numpy', 'torch', 'PIL', 'pydantic', 'typer', 'rich');"
        "print([name for name in heavy if name in sys.modules]);"
        "from pairloc import Localizer, Localization, read, evaluate; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nTrue\n"


def test_weights_of_a_backbone_that_would_be_a_download_are_loaded(tmp_path: Path, run: Path) -> None:
    """Loading needs no ImageNet weights, so it asks for none; learning anew does."""
    settings = TINY.model_copy(update={"backbone": "resnet50-v1", "pretrained": False})
    torch.manual_seed(0)
    trained = settings.model_copy(update={"pretrained": True})
    Proposer(build(settings, 3), trained, ("a", "b", "c")).save(tmp_path / "weights" / "proposer")
    shutil.copytree(run / "transfer", tmp_path / "weights" / "transfer")
    localizer = Localizer.load(tmp_path / "weights", device="cpu")
    assert localizer.proposer.backbone == "resnet50-v1"
    with pytest.raises(InputError, match=r"needs proposer\.backbone_weights"):
        localizer.fit(run / "data" / "scenes" / "source.json")
