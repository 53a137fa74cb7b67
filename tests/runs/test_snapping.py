"""The method `snapped`: what it writes, how it resumes, and what it refuses before any work."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.scored import ScoredBoxes
from pairloc.errors import InputError
from pairloc.formats.coco import Segmentation, write_boxes
from pairloc.formats.reading import read, read_boxes
from pairloc.images import open_image
from pairloc.refinement import mobilesam
from pairloc.refinement.masks import Masks
from pairloc.runs import snapping
from pairloc.runs.localize import localize, localize_settings
from pairloc.runs.sealing import broken
from pairloc.runs.snapping import segmentation, snap_boxes, write_masks
from pairloc.settings import RunSettings, SnapSettings
from runs.calling import call, copied, refused

SETTINGS = SnapSettings(min_iou=0.3)
of_pycocotools = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@dataclass
class Inset:
    """A segmenter without a network: the mask of a box is the box without its outermost pixels."""

    calls: list[int] = field(default_factory=list)

    def __call__(self, image: Tensor, boxes: Tensor) -> Masks:
        height, width = image.shape[1:]
        masks = torch.zeros(len(boxes), height, width, dtype=torch.bool)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.round().int().tolist(), strict=True):
            mask[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1] = True
        self.calls.append(len(boxes))
        return Masks(masks, (width, height), torch.ones(len(boxes)), torch.ones(len(boxes)))


@pytest.fixture
def tagged(scenes: Path) -> tuple[Dataset, ScoredBoxes]:
    """Images with two boxes for every tag, in no order."""
    dataset = read(scenes / "target_tags.csv")
    image = np.repeat([index for index, tags in enumerate(dataset.tags) for _ in tags], 2)
    label = np.repeat([tag for tags in dataset.tags for tag in tags], 2)
    generator = np.random.default_rng(0)
    corner = generator.uniform(2, 20, (len(image), 2)).round()
    boxes = np.concatenate([corner, corner + generator.uniform(12, 40, (len(image), 2)).round()], axis=1)
    shuffled = generator.permutation(len(image))
    return dataset, ScoredBoxes(image[shuffled], label[shuffled], boxes[shuffled], generator.random(len(image)))


def test_every_box_moves_to_its_mask_and_keeps_its_tag_and_confidence(
    tagged: tuple[Dataset, ScoredBoxes], tmp_path: Path
) -> None:
    dataset, boxes = tagged
    lines: list[str] = []
    snapped = snap_boxes(dataset, boxes, Inset(), SETTINGS, tmp_path, log=lines.append)
    assert snapped.moved.all()
    assert np.array_equal(snapped.boxes.boxes, boxes.boxes + np.array([1, 1, -1, -1]))
    for column in ("image", "label", "score"):
        assert np.array_equal(getattr(snapped.boxes, column), getattr(boxes, column))
    assert lines == [f"{len(boxes)} of {len(boxes)} boxes moved to the edges of their masks"]


def test_no_boxes(tagged: tuple[Dataset, ScoredBoxes], tmp_path: Path) -> None:
    dataset, boxes = tagged
    none = boxes.where(np.zeros(len(boxes), dtype=np.bool_))
    assert len(snap_boxes(dataset, none, Inset(), SETTINGS, tmp_path).boxes) == 0


@pytest.mark.parametrize("masks", [False, True])
def test_an_interrupted_call_resumes_after_the_last_part(
    tagged: tuple[Dataset, ScoredBoxes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, masks: bool
) -> None:
    monkeypatch.setattr(snapping, "_PART", 3)
    dataset, boxes = tagged
    settings = SETTINGS.model_copy(update={"masks": masks})
    expected = snap_boxes(dataset, boxes, Inset(), settings, tmp_path)
    parts = sorted(tmp_path.glob("part-*.json"))
    images = len(set(boxes.image.tolist()))
    assert len(parts) == -(-images // 3)
    parts[0].write_text("{}")  # damaged
    parts[-1].unlink()
    segmenter = Inset()
    again = snap_boxes(dataset, boxes, segmenter, settings, tmp_path)
    assert len(segmenter.calls) == 3 + (images - 3 * (len(parts) - 1))
    assert np.array_equal(again.boxes.boxes, expected.boxes.boxes)
    assert again.masks == expected.masks
    untouched = Inset()
    snap_boxes(dataset, boxes, untouched, settings, tmp_path)
    assert untouched.calls == []
    other_question = SETTINGS.model_copy(update={"masks": not masks})
    snap_boxes(dataset, boxes, untouched, other_question, tmp_path)
    assert len(untouched.calls) == images


def test_the_boxes_of_an_unreadable_image_stay(tagged: tuple[Dataset, ScoredBoxes], tmp_path: Path) -> None:
    dataset, boxes = tagged
    copy = tmp_path / "images"
    copy.mkdir()
    for index, image in enumerate(dataset.images):
        (copy / image.file).write_bytes(dataset.path(index).read_bytes())
    bad = int(boxes.image[0])
    (copy / dataset.images[bad].file).write_bytes(b"no image")
    moved_away = Dataset(dataset.images, dataset.classes, dataset.tags, dataset.class_ids, copy)
    snapped = snap_boxes(moved_away, boxes, Inset(), SETTINGS, tmp_path)
    assert np.array_equal(snapped.moved, boxes.image != bad)
    assert np.array_equal(snapped.boxes.boxes[boxes.image == bad], boxes.boxes[boxes.image == bad])


@of_pycocotools
def test_masks_are_coco_segmentations(tagged: tuple[Dataset, ScoredBoxes], tmp_path: Path) -> None:
    """As pycocotools reads them: the box around a mask is its box, and their areas agree."""
    from pycocotools.coco import COCO

    dataset, boxes = tagged
    settings = SETTINGS.model_copy(update={"masks": True})
    snapped = snap_boxes(dataset, boxes, Inset(), settings, tmp_path)
    sized = Dataset(
        tuple(type(image)(image.id, image.file, open_image(dataset.path(row)).size)
              for row, image in enumerate(dataset.images)),
        dataset.classes, dataset.tags, dataset.class_ids, dataset.folder,
    )  # fmt: skip
    write_masks(tmp_path / "masks.json", sized, snapped)
    write_boxes(tmp_path / "boxes.json", sized, snapped.boxes)
    with_masks, without = json.loads((tmp_path / "masks.json").read_text()), read_boxes(tmp_path / "boxes.json")[1]
    assert np.array_equal(read_boxes(tmp_path / "masks.json")[1].boxes, without.boxes)
    coco = COCO()
    coco.dataset = with_masks
    coco.createIndex()
    for annotation in coco.dataset["annotations"]:
        mask = coco.annToMask(annotation)
        x, y, width, height = (int(value) for value in annotation["bbox"])
        expected = np.zeros_like(mask)
        expected[y : y + height, x : x + width] = 1
        assert np.array_equal(mask, expected)
        assert annotation["area"] == width * height
        assert annotation["quality"] == annotation["stability"] == 1
        assert annotation["overlap"] == pytest.approx(width * height / ((width + 2) * (height + 2)), abs=0.01)


@of_pycocotools
def test_a_mask_of_another_resolution_is_scaled_to_the_image() -> None:
    from pycocotools import mask as referee

    coarse = torch.zeros(4, 6, dtype=torch.bool)
    coarse[1:3, 2:5] = True
    found = segmentation(coarse, (60, 40), 0.901, 0.8, 0.7)
    expected = np.zeros((40, 60), dtype=np.uint8)
    expected[10:30, 20:50] = 1
    assert np.array_equal(referee.decode({"size": [40, 60], "counts": found.counts}), expected)
    expected_facts = Segmentation(size=(40, 60), counts=found.counts, area=600, quality=0.9, stability=0.8, overlap=0.7)
    assert found == expected_facts


@pytest.mark.parametrize("methods", [["snapped"], ["snapped", "full"], ["unary", "snapped"]])
def test_snapped_comes_last_and_needs_full(methods: list[str]) -> None:
    with pytest.raises(ValueError, match="list it last, with 'full'"):
        RunSettings.model_validate({"data": {"target": "tags.csv"}, "weights": "coco63", "methods": methods})


def test_what_is_not_installed_is_refused_before_any_work(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mobilesam, "DISTRIBUTION", "no-such-distribution")
    scenes = finished_run / "data" / "scenes"
    arguments = ["localize", scenes / "images", "--tags", scenes / "target_tags.csv", "--weights", finished_run]
    assert "pip install" in refused(*arguments, "--out", tmp_path / "out", "--snap")
    found = localize_settings(scenes / "images", scenes / "target_tags.csv", segmenter=Path("mine.pt"))
    assert found.snap.weights == Path.cwd() / "mine.pt"  # the same from any working folder
    (tmp_path / "mine.pt").write_bytes(b"mine")
    text = refused(*arguments, "--out", tmp_path / "out", "--segmenter", tmp_path / "mine.pt")
    assert "mine.pt: is not the official mobile_sam.pt" in text
    assert not (tmp_path / "out").exists()


@pytest.mark.segmenter
def test_localize_snaps_and_writes_masks(localized: Path, finished_run: Path, tmp_path: Path) -> None:
    """A finished localization is snapped without choosing boxes anew; masks belong to the boxes that moved."""
    out, scenes = copied(localized, tmp_path / "out"), finished_run / "data" / "scenes"
    arguments = ["localize", scenes / "images", "--tags", scenes / "target_tags.csv", "--weights", finished_run]
    before = (out / "full" / "boxes.json").read_bytes()
    status, text = call(*arguments, "--out", out, "--masks", "--device", "cpu")
    assert status == 0
    assert "choosing a box" not in text
    assert "boxes moved to the edges of their masks" in text
    assert f"masks: {out / 'masks.json'}" in text
    assert (out / "full" / "boxes.json").read_bytes() == before
    assert sorted(file.name for file in (out / "snapped").iterdir() if file.suffix == ".json") == [
        "begun.json", "boxes.json", "done.json", "history.json", "masks.json",
    ]  # fmt: skip
    assert (out / "boxes.json").read_bytes() == (out / "snapped" / "boxes.json").read_bytes()
    found = json.loads((out / "masks.json").read_text())["annotations"]
    plain = json.loads((out / "boxes.json").read_text())["annotations"]
    assert [entry["bbox"] for entry in found] == [entry["bbox"] for entry in plain]
    assert any("segmentation" in entry for entry in found)
    assert broken(out) == []
    status, text = call(*arguments, "--out", out)  # without the option everything is as before
    assert status == 0
    assert (out / "boxes.json").read_bytes() == before
    assert not (out / "masks.json").exists()


@pytest.mark.segmenter
def test_python_snaps_as_the_command_does(localized: Path, finished_run: Path, tmp_path: Path) -> None:
    from pairloc import Localizer

    scenes = finished_run / "data" / "scenes"
    tags = read(scenes / "target_tags.csv")
    assert tags.folder is not None
    settings = localize_settings(tags.folder, scenes / "target_tags.csv", weights=str(finished_run), snap=True)
    localize(settings, copied(localized, tmp_path / "out"), "cpu", lambda line: None)
    paths = [tags.path(index) for index in range(len(tags))]
    names = [tags.names(index) for index in range(len(tags))]
    found = Localizer.load(finished_run, device="cpu").localize(paths, names, snap=True)
    _, expected = read_boxes(tmp_path / "out" / "boxes.json")
    order = [np.lexsort((boxes.label, boxes.image)) for boxes in (found.boxes, expected)]
    # The command starts from boxes in a file, which has two digits after the point.
    np.testing.assert_allclose(found.boxes.boxes[order[0]], expected.boxes[order[1]], atol=0.5)


def test_python_refuses_a_segmenter_that_is_not_there(finished_run: Path, tmp_path: Path) -> None:
    from pairloc import Localizer

    localizer = Localizer.load(finished_run, device="cpu")
    with pytest.raises(InputError, match=r"none\.pt: is not a file"):
        localizer.localize([tmp_path / "a.jpg"], ["a"], snap=tmp_path / "none.pt")
