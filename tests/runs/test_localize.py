"""Localization with the packaged weights, for all kinds of tags and images."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pairloc import Localizer
from pairloc.curation.scenes import write_scenes
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.dataset import Image as DatasetImage
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.formats.reading import read, read_boxes
from pairloc.localization.combination import Combination, Weighing
from pairloc.localization.explained import read_explanations
from pairloc.runs.localize import localize, localize_settings, warning_of
from pairloc.runs.sealing import broken
from pairloc.settings import LocalizationSettings, SceneSettings
from pairloc.weights import PACKAGED, weights_folder
from runs.calling import call, copied, refused


@pytest.fixture(scope="module")
def images_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_scenes(folder, SceneSettings(source_images=1, target_images=8))
    return folder


def test_weights_are_small_and_have_a_card() -> None:
    folder = weights_folder(PACKAGED)
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 40e6
    card = (folder / "CARD.md").read_text()
    assert "licence" in card
    with pytest.raises(InputError, match="is not a folder of weights"):
        weights_folder("nowhere")


def test_good_corrupt_missing_and_untagged_images(images_folder: Path, tmp_path: Path) -> None:
    """Corrupt and missing images are named and left out, untagged ones are named, all others get boxes."""
    tags = (images_folder / "target_tags.csv").read_text().splitlines()
    names = list(dict.fromkeys(line.split(",")[0] for line in tags[1:]))
    folder = tmp_path / "images"
    folder.mkdir()
    source = read(images_folder / "target_tags.csv").folder
    assert source is not None
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((source / name).read_bytes())
    (folder / names[0]).write_bytes(b"not an image")
    (folder / names[1]).unlink()
    Image.new("RGB", (37, 501), "green").save(folder / "untagged.png")
    tall = folder / names[2]
    Image.open(tall).convert("RGB").resize((60, 400)).save(tall)
    (tmp_path / "tags.csv").write_text("\n".join(tags) + "\n")
    lines: list[str] = []
    out = tmp_path / "out"
    settings = localize_settings(folder, tmp_path / "tags.csv", rounds=0)
    localize(settings, out, "cpu", lines.append)
    message = "\n".join(lines)
    assert "1 images have no tag and get no box: untagged.png" in message
    assert "2 images were left out" in message
    skipped = (out / "skipped.txt").read_text().splitlines()
    assert len(skipped) == 2
    assert names[0] in skipped[0]
    _, boxes = read_boxes(out / "boxes.json")
    assert len({int(i) for i in boxes.image}) == len(names) - 2
    assert ((boxes.score > 0) & (boxes.score < 1)).all()
    sizes = {entry["file_name"]: (entry["width"], entry["height"]) for entry in json.loads(
        (out / "boxes.json").read_text())["images"] if "width" in entry}  # fmt: skip
    assert sizes[names[2]] == (60, 400)
    assert (out / "report.html").is_file()
    assert broken(out) == []
    again: list[str] = []
    localize(settings, out, "cpu", again.append)
    assert not any("..." in line for line in again)  # no stage runs twice


def test_a_class_of_one_image_gets_a_box_with_low_confidence(images_folder: Path, tmp_path: Path) -> None:
    dataset = read(images_folder / "target_tags.csv")
    rows = [f"{image.file},class {number}" for number, image in enumerate(dataset.images)]
    (tmp_path / "tags.csv").write_text("image,labels\n" + "\n".join(rows) + "\n")
    assert dataset.folder is not None
    settings = localize_settings(dataset.folder, tmp_path / "tags.csv")
    localize(settings, tmp_path / "out", "cpu", lambda line: None)
    _, boxes = read_boxes(tmp_path / "out" / "boxes.json")
    assert len(boxes) == len(dataset)
    assert (boxes.score <= 0.5).all()


def test_every_box_of_the_packaged_weights_is_explained(images_folder: Path, tmp_path: Path) -> None:
    """Next to the boxes of the method, and in the report, which shows no name of a term."""
    dataset = read(images_folder / "target_tags.csv")
    assert dataset.folder is not None
    settings = localize_settings(dataset.folder, images_folder / "target_tags.csv", rounds=0)
    localize(settings, tmp_path / "out", "cpu", lambda line: None)
    explained = read_explanations(tmp_path / "out" / "full")
    assert explained is not None
    assert sum(len(tag.images) for tag in explained.tags.values()) == sum(map(len, dataset.tags))
    page = (tmp_path / "out" / "report.html").read_text()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert "looks like an object" in data["reasons"]
    assert all(1 <= len(item["boxes"]["F"]["why"]) <= 7 for item in data["items"])
    assert broken(tmp_path / "out") == []


def test_boxes_of_low_confidence_are_left_out_and_listed(localized: Path, finished_run: Path, tmp_path: Path) -> None:
    """Another limit needs no method to run again, and without one everything is as before."""
    out, scenes = copied(localized, tmp_path / "out"), finished_run / "data" / "scenes"
    dataset, every = read_boxes(localized / "boxes.json")
    command = (
        "localize", scenes / "images", "--tags", scenes / "target_tags.csv", "--weights", finished_run, "--out", out,
    )  # fmt: skip
    for least in (round(float(np.median(every.score)), 3), 1.0):
        answer = call(*command, "--min-confidence", least)
        assert answer.status == 0
        assert [line for line in answer.text.splitlines() if line.endswith(" ...")] == ["writing the report ..."]
        low = every.score < least
        table = out / "low-confidence.csv"
        last = f"left out: {low.sum()} of {len(every)} boxes, of confidence below {least:g}, listed in {table}"
        assert answer.text.splitlines()[-1] == last
        found_in, kept = read_boxes(out / "boxes.json")
        assert found_in.images == dataset.images
        assert found_in.classes == dataset.classes
        for name in ("image", "label", "score"):
            assert getattr(kept, name).tolist() == getattr(every.where(~low), name).tolist()
        np.testing.assert_allclose(kept.boxes, every.where(~low).boxes, atol=0.011)
        rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
        assert list(rows[0]) == ["image", "tag", "confidence", "x", "y", "width", "height"]
        listed = [(row["image"], row["tag"], float(row["confidence"])) for row in rows]
        left_out = every.where(low)
        expected = [
            (dataset.images[image].file, dataset.classes[label], score)
            for image, label, score in zip(left_out.image, left_out.label, left_out.score, strict=True)
        ]
        assert sorted(listed) == sorted(expected)
        assert [row[2] for row in listed] == sorted(row[2] for row in listed)
        assert (out / "full" / "boxes.json").read_bytes() == (localized / "full" / "boxes.json").read_bytes()
        assert f'"least": {least}' in (out / "report.html").read_text()
        assert broken(out) == []
    answer = call(*command)
    assert "left out" not in answer.text
    assert not (out / "low-confidence.csv").exists()
    assert (out / "boxes.json").read_bytes() == (localized / "boxes.json").read_bytes()
    assert broken(out) == []
    assert not (out / "aside").exists()


@pytest.mark.parametrize("least", ["-0.1", "1.1", "nan", "half"])
def test_a_confidence_is_between_0_and_1(tmp_path: Path, least: str) -> None:
    answer = call(
        "localize", tmp_path, "--tags", tmp_path / "t.csv", "--out", tmp_path / "o", "--min-confidence", least
    )
    assert answer.status == 2
    assert "--min-confidence" in answer.text


def test_tags_that_the_weights_know_are_named_unless_all_are_new(images_folder: Path, tmp_path: Path) -> None:
    weights = Path(shutil.copytree(weights_folder(PACKAGED), tmp_path / "weights"))
    combination = Combination.load(weights / "evidence")
    assert combination is not None
    own = [Weighing(terms=entry.terms | {"own class": (-3.0, 1.5, 2.0)}) for entry in combination.weighings]
    combination.model_copy(update={"weighings": (*combination.weighings, *own)}).save(weights / "evidence")
    dataset = read(images_folder / "target_tags.csv")
    rows = [f"{image.file},{('person', 'Horses', 'TVs', 'dog')[n % 4]}" for n, image in enumerate(dataset.images)]
    (tmp_path / "tags.csv").write_text("image,labels\n" + "\n".join(rows) + "\n")
    command = [
        "localize", images_folder / "images", "--tags", tmp_path / "tags.csv", "--rounds", 0, "--device", "cpu",
        "--weights", weights,
    ]  # fmt: skip
    said = {}
    for flags in ((), ("--tags-as-new",)):
        answer = call(*command, "--out", tmp_path / f"out{len(flags)}", *flags)
        assert answer.status == 0, answer.text
        said[flags] = [line for line in answer.text.splitlines() if "know" in line]
        config = json.loads((tmp_path / f"out{len(flags)}" / "config.json").read_text())
        assert config["settings"]["localization"]["unary"]["tags_as_new"] == bool(flags)
    (line,) = said[()]
    assert line.endswith("3 tags are classes that the weights know: person; Horses (horse); TVs (tv)")
    assert said[("--tags-as-new",)] == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tags.csv", "image,labels\nnothere.jpg,cat\n", "contains none of the 1 images"),
        ("tags.doc", "cat in a.jpg", "not recognised as a data set; pass its format with --format"),
        ("tags.csv", "", "is empty"),
    ],
)
def test_invalid_tags_are_reported(images_folder: Path, tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    text = refused("localize", images_folder / "images", "--tags", tmp_path / name, "--out", tmp_path / "out")
    assert message in text
    assert not (tmp_path / "out").exists()


def test_pretrained_in_three_lines(images_folder: Path) -> None:
    dataset = read(images_folder / "target_tags.csv")
    paths = [dataset.path(index) for index in range(4)]
    localizer = Localizer.pretrained(localization=LocalizationSettings(rounds=0))
    found = localizer.localize(paths, [dataset.names(index) for index in range(4)])
    assert np.isfinite(found.boxes.boxes).all()
    assert len(found) == 4
    assert len(found.boxes) == sum(len(dataset.names(index)) for index in range(4))
    assert Localizer.pretrained().localization == LocalizationSettings()


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ((0.1, 0.2, 0.1, 0.1), "most boxes are probably wrong: their mean confidence is 12%"),
        ((0.9, 0.9, 0.1, 0.2), "the boxes of these tags are probably wrong: cell; "),
        ((0.9, 0.9, 0.5, 0.6), None),
        ((), None),
    ],
)
def test_a_user_is_told_what_is_probably_wrong(scores: tuple[float, ...], message: str | None) -> None:
    count = len(scores)
    dataset = Dataset((DatasetImage(1, "a.png", (9, 9)),), ("dog", "cell"), ((0, 1),))
    label = np.array([0, 0, 1, 1][:count], dtype=np.int64)
    boxes = ScoredBoxes(np.zeros(count, np.int64), label, np.zeros((count, 4)), np.array(scores, dtype=np.float64))
    found = warning_of(dataset, boxes)
    assert (found is None) if message is None else (found is not None and found.startswith(message))
