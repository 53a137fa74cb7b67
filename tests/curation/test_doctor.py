import json
import shutil
from pathlib import Path

import pytest

from helpers import coco, image_file, write_json
from pairloc.curation.doctor import examine
from pairloc.curation.scenes import write_scenes
from pairloc.errors import InputError
from pairloc.settings import SceneSettings


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, SceneSettings(source_images=120, target_images=80, size=48))
    return folder


def test_healthy_scenes(healthy: Path) -> None:
    report = examine(healthy, deep=True)
    assert report.usable
    assert len(report.findings) == 0
    assert report.checked == 200
    by_file = {Path(summary.file).name: summary for summary in report.summaries}
    assert by_file["source.json"].images == 120
    assert by_file["target_tags.csv"].boxes == 0
    assert sum(by_file["source.json"].box_sizes.values()) == by_file["source.json"].boxes
    assert json.dumps(report.to_json())


def test_every_planted_problem_is_reported(healthy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(healthy, folder)
    file = folder / "source.json"
    content = json.loads(file.read_text())
    images, annotations = content["images"], content["annotations"]
    image_files = folder / "images"
    names = [image["file_name"] for image in images]

    (image_files / names[0]).unlink()
    (image_files / names[1]).write_bytes((image_files / names[1]).read_bytes()[:600])
    (image_files / names[2]).write_text("not an image")
    images[4]["file_name"] = names[3]
    annotations[5]["bbox"] = [40, 40, 30, 30]
    annotations[6]["bbox"] = [10, 10, 0, 5]
    annotations[7]["bbox"] = [10, float("nan"), 5, 5]
    annotations[8]["bbox"] = [10, 10, -5, 5]
    annotations[9]["image_id"] = 987654
    annotations[10]["category_id"] = 4711
    annotations[11]["iscrowd"] = 1
    annotations[12]["id"] = annotations[11]["id"]
    images.append({"id": 5000, "file_name": "lonely.jpg", "width": 48, "height": 48})
    image_file(image_files / "lonely.jpg", (48, 48))
    content["categories"].append({"id": 99, "name": "unicorn"})
    image_file(image_files / names[20], (48, 48), orientation=6)
    image_file(image_files / names[21], (30, 48))
    image_file(image_files / names[22], (60, 48), orientation=6)
    images[22] |= {"width": 60, "height": 48}
    image_file(image_files / "unlisted.jpg", (48, 48))
    file.write_text(json.dumps(content))
    with (folder / "target_tags.csv").open("a") as stream:
        stream.write("nowhere.jpg,cup\n")

    report = examine(folder)
    places = {
        "missing-image": names[0],
        "truncated-image": names[1],
        "unreadable-image": names[2],
        "duplicate-image": "images[4]",
        "box-outside": "annotations[5]",
        "box-without-area": "annotations[6]",
        "not-a-number": "annotations[7]",
        "negative-size": "annotations[8]",
        "unknown-image": "annotations[9]",
        "unknown-category": "annotations[10]",
        "crowd-box": "annotations[11]",
        "duplicate-id": "annotations[12]",
        "no-tag": "lonely.jpg",
        "rare-class": "unicorn",
        "rotated-image": names[20],
        "wrong-size": names[21],
        "rotated-boxes": names[22],
        "unlisted-image": "unlisted.jpg",
    }
    for kind, place in places.items():
        assert any(
            finding.kind == kind and place in f"{finding.place} {finding.problem}" for finding in report.findings
        ), kind
    assert any(finding.kind == "missing-image" and "nowhere.jpg" in finding.place for finding in report.findings)
    assert not report.usable


def test_pixels_are_decoded_only_with_deep(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", coco())
    image_file(tmp_path / "images" / "b.png")
    file = image_file(tmp_path / "images" / "a.png")
    content = bytearray(file.read_bytes())
    content[-20] ^= 255
    file.write_bytes(content)
    assert examine(tmp_path).usable
    assert [finding.kind for finding in examine(tmp_path, deep=True).findings.errors] == ["unreadable-image"]


def test_without_image_files_only_the_annotations_are_checked(tmp_path: Path) -> None:
    report = examine(write_json(tmp_path / "x.json", coco()))
    assert report.usable
    assert report.checked == 0
    assert report.summaries[0].folder is None
    assert [finding.kind for finding in report.findings if finding.kind != "rare-class"] == ["no-image-files"]


def test_a_folder_without_a_data_set_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not recognised as a data set"):
        examine(tmp_path)


def test_one_bad_file_does_not_hide_the_others(tmp_path: Path) -> None:
    write_json(tmp_path / "good.json", coco())
    (tmp_path / "broken.json").write_text('{"images": [')
    write_json(tmp_path / "settings.json", {"theme": "dark"})
    for name in ("a.png", "b.png"):
        image_file(tmp_path / "images" / name)
    report = examine(tmp_path)
    assert [finding.kind for finding in report.findings.errors] == ["bad-file"]
    assert [Path(summary.file).name for summary in report.summaries] == ["good.json"]


def test_boxes_are_checked_against_image_files_if_no_size_is_given(tmp_path: Path) -> None:
    images = [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}]
    write_json(tmp_path / "x.json", coco(images=images))
    image_file(tmp_path / "images" / "a.png", (40, 30))
    image_file(tmp_path / "images" / "b.png", (20, 10))
    report = examine(tmp_path)
    assert [finding.place for finding in report.findings if finding.kind == "box-outside"] == [
        f"{tmp_path / 'x.json'}: annotations[1] (id 2)"
    ]


def test_problems_of_a_rejected_image_are_reported_once(tmp_path: Path) -> None:
    images = [
        {"id": i, "file_name": name, "width": 40, "height": 30} for i, name in ((1, "a.png"), (2, "a.png"), (3, "../x"))
    ]
    boxes = [[1, 2, 3, 4], [1, float("nan"), 3, 4], [1, 2, 0, 4], [1, 2, 3, 4]]
    annotations = [
        {"id": n, "image_id": image, "category_id": 5, "bbox": box}
        for n, (image, box) in enumerate(zip((1, 2, 2, 3), boxes, strict=True))
    ]
    findings = examine(write_json(tmp_path / "x.json", coco(images=images, annotations=annotations))).findings
    kinds = sorted(finding.kind for finding in findings if finding.kind not in ("rare-class", "no-image-files"))
    assert kinds == ["box-without-area", "duplicate-image", "not-a-number", "path-outside"]


def test_names_of_the_same_and_copies_of_images_are_reported(tmp_path: Path) -> None:
    for name, seed in (("a.png", 1), ("b.png", 2), ("c.png", 3)):
        image_file(tmp_path / "images" / name, (40 + seed, 30))
    shutil.copy(tmp_path / "images" / "a.png", tmp_path / "images" / "copy of a.png")
    rows = ["image,label", "a.png,Dog", "b.png,dogs", "c.png,cat", "copy of a.png,cat"]
    (tmp_path / "tags.csv").write_text("\n".join(rows) + "\n")
    report = examine(tmp_path / "tags.csv", images=tmp_path / "images")
    assert report.usable
    found = {finding.kind: finding for finding in report.findings}
    assert found["similar-class"].problem == "'Dog', 'dogs' may be the same class"
    assert found["identical-image"].place == str(tmp_path / "images" / "copy of a.png")
    assert found["identical-image"].problem == f"has the same content as {tmp_path / 'images' / 'a.png'}"
