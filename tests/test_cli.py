"""The command line as a user meets it: in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from helpers import coco, image_file, write_ilsvrc, write_json
from pairloc import __version__
from pairloc.weights import PACKAGED
from runs.calling import call, refused

HEAVY = ("numpy", "torch", "PIL", "pydantic", "yaml")


def run(*arguments: object, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pairloc", *map(str, arguments)]
    environment = os.environ | variables
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


def test_help_lists_the_verbs_and_imports_nothing_heavy() -> None:
    result = run("--help")
    assert result.returncode == 0
    for verb in (
        "localize", "run", "status", "verify", "clean", "demo", "tune", "evaluate", "report", "doctor", "scenes",
        "export", "split", "propose", "bags", "study", "detect", "weights",
    ):  # fmt: skip
        assert f" {verb} " in result.stdout, verb
    code = f"import sys, pairloc.cli; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_script_does_what_the_module_does() -> None:
    script = Path(sys.executable).with_name("pairloc")
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert shown == run("--version").stdout
    first, versions, rest = shown.splitlines()
    assert first == f"pairloc {__version__}"
    assert versions.startswith(f"Python {sys.version.split()[0]}, torch {torch.__version__.split('+')[0]}")
    assert rest.endswith(f"weights {PACKAGED}")


def test_the_shell_is_told_what_completes() -> None:
    shown = run("--show-completion", "bash").stdout
    assert "complete -o default" in shown
    assert "pairloc" in shown


def test_scenes_doctor_export(tmp_path: Path) -> None:
    made = run("scenes", "--out", "s", "--source-images", 60, "--target-images", 60, "--size", 48, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "60 images" in made.stdout
    again = run("scenes", "--out", "s", "--source-images", 60, "--target-images", 60, "--size", 48, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    other = run("scenes", "--out", "s", "--seed", 1, cwd=tmp_path)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)

    healthy = run("doctor", "s", cwd=tmp_path)
    assert healthy.returncode == 0, healthy.stdout
    assert "This data can be used: 0 errors" in healthy.stdout

    out = run("export", "s/target_truth.json", "--to", "yolo", "--out", "y", "--images", "s/images", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert run("doctor", "y", cwd=tmp_path).returncode == 0

    (tmp_path / "s" / "images" / "target_000061.jpg").unlink()
    sick = run("doctor", "s", "--json", cwd=tmp_path)
    assert sick.returncode == 1
    report = json.loads(sick.stdout)
    assert {finding["kind"] for finding in report["findings"]} == {"missing-image"}
    assert not report["usable"]
    assert "target_000061.jpg" in run("doctor", "s", cwd=tmp_path).stdout


def test_split_classes_and_coco17(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", coco())
    result = run("split", "classes", "--annotations", "x.json", "--target", "hot dog", "--out", "c", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "manifest.json", "source.json", "target_tags.csv", "target_truth.json",
    ]  # fmt: skip
    val = coco(images=[{"id": 7, "file_name": "c.png", "labels": [9]}], annotations=[])
    write_json(tmp_path / "val.json", val)
    result = run("split", "coco17", "--annotations", "x.json", "val.json", "--out", "d", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "source 1 images, 1 boxes, 1 classes" in result.stdout
    assert "from training annotations 1, from validation 1" in result.stdout


def test_split_ilsvrc100(tmp_path: Path) -> None:
    root = write_ilsvrc(tmp_path / "ILSVRC")
    result = run("split", "ilsvrc100", "--root", root, "--out", tmp_path / "o", "--boxes-per-class", 5)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "o" / "test_truth.json").is_file()


def bad_calls(folder: Path) -> list[tuple[list[object], str]]:
    (folder / "broken.json").write_text('{"images": [')
    (folder / "empty.csv").write_text("")
    (folder / "bomb.xml").write_text('<!DOCTYPE a [<!ENTITY e "x">]><annotations>&e;</annotations>')
    write_json(folder / "outside.json", coco(images=[{"id": 1, "file_name": "../a.png"}], annotations=[]))
    good = write_json(folder / "good.json", coco())
    (folder / "full").mkdir()
    (folder / "full" / "thesis.txt").write_text("x")
    export = ["export", good, "--to", "voc", "--out"]
    return [
        (["doctor", folder / "none.json"], "no such file"),
        (["doctor", folder / "broken.json"], "line 1"),
        (["doctor", folder / "empty.csv"], "is empty"),
        (["doctor", folder / "bomb.xml"], "has a DTD"),
        (["doctor", good, "--format", "voc"], "is not a VOC folder"),
        (["doctor", good, "--format", "pdf"], "no format 'pdf'"),
        (["export", folder / "outside.json", "--to", "voc", "--out", folder / "o"], "use names below"),
        (["export", good, "--to", "pdf", "--out", folder / "o"], "no format 'pdf' to export to"),
        ([*export, folder / "full"], "already contains other files"),
        ([*export, folder / "full" / "thesis.txt"], "is a file"),
        ([*export, folder / "full" / "thesis.txt" / "o"], "thesis.txt"),
        ([*export, "/proc/o"], "/proc"),
        (["split", "classes", "--annotations", good, "--target", "dgo", "--out", folder / "o"], "no class 'dgo'"),
        (["scenes", "--out", folder / "o", "--size", "3"], "--size"),
    ]


def test_bad_input_is_one_sentence_exit_2_and_nothing_written(tmp_path: Path) -> None:
    calls = bad_calls(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for arguments, message in calls:
        result = run(*arguments)
        assert result.returncode == 2, (arguments, result.stdout, result.stderr)
        assert message in result.stderr, arguments
        assert result.stderr.startswith("pairloc: "), arguments
        assert result.stderr.count("\n") == 1, arguments
        assert result.stdout == "", arguments
        assert sorted(tmp_path.rglob("*")) == before, arguments


def test_a_gigapixel_image_is_a_finding(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", coco())
    image_file(tmp_path / "images" / "a.png")
    Image.new("1", (20_000, 20_000)).save(tmp_path / "images" / "b.png")
    result = run("doctor", tmp_path)
    assert result.returncode == 1
    assert "decodes to" in result.stdout


def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("image,label\na.jpg,日本\nb.jpg,日本\n", encoding="utf-8")
    result = run("doctor", tmp_path / "x.csv", PYTHONIOENCODING="cp1252")
    assert result.returncode == 0, result.stderr
    assert "\\u65e5" in result.stdout


def test_bags_from_imported_proposals(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", coco())
    results = [
        {"image_id": 1, "bbox": [1, 2, 10, 10], "score": 0.9},
        {"image_id": 2, "bbox": [30, 20, 5, 5], "score": 0.5},
    ]
    write_json(tmp_path / "r.json", results)
    made = run("bags", "import", "--proposals", "r.json", "--data", "x.json", "--out", "s", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "2 proposals" in made.stdout
    assert "images               2" in run("bags", "info", "s", cwd=tmp_path).stdout
    recall = json.loads(run("bags", "recall", "s", "--truth", "x.json", "--json", cwd=tmp_path).stdout)
    assert recall["rows"][0]["values"] == [0.5] * 6
    assert recall["images"] == {"@0.5": 0.5, "@0.7": 0.5}
    assert run("bags", "verify", "s", cwd=tmp_path).returncode == 0
    file = tmp_path / "s" / "shard-00000" / "boxes.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    damaged = run("bags", "verify", "s", cwd=tmp_path)
    assert damaged.returncode == 1
    assert "boxes.npy" in damaged.stdout
    for arguments, message in (
        (["bags", "info", "none"], "is not a bag store"),
        (
            ["bags", "extract", "--proposer", "none", "--data", "x.json", "--out", "t", "--set", "proposals=0"],
            "--set: proposals: ",
        ),
        (
            ["bags", "extract", "--proposer", "none", "--data", "x.json", "--out", "t", "--set", "proposal=3"],
            "--set: proposal: Extra inputs",
        ),
        (["propose", "train", "--data", "x.json", "--out", "t", "--set", "epochs=0"], "--set: epochs: "),
        (["propose", "train", "--data", "x.json", "--out", "t", "--set", "backbone=nope"], "no backbone 'nope'"),
        (["propose", "train", "--data", "x.json", "--out", "t", "--preset", "nope"], "there is no preset 'nope'"),
    ):
        status, text = call(*[str(tmp_path / word) if word.endswith(".json") else word for word in arguments])
        assert (status, text.count("\n")) == (2, 0), text
        assert message in text
        assert not (tmp_path / "t").exists()


SMALL = ("--preset", "demo", "--set", "epochs=1", "--set", "image_size=64", "--set", "head=32", "--set", "pyramid=16")


def test_detect_trains_goes_on_from_weights_evaluates_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    made = call("scenes", "--out", "s", "--source-images", 8, "--target-images", 12, "--size", 64)
    assert made.status == 0, made.text
    first = call("detect", "train", "--truth", "s/source.json", *SMALL, "--out", "first")
    assert first.status == 0, first.text
    half = ("--truth", "s/target_truth.json", "--hold-out", 2)
    train = ("detect", "train", *half, *SMALL, "--set", "frozen=true", "--out", "second")
    assert "no weights to start from" in refused(*train)
    changes = ("--set", "min_background_iou=0.1", "--set", "crop=0.8")
    second = call(*train, "--start", "first", *changes)
    assert second.status == 0, second.text
    shown = call("detect", "evaluate", "second", *half, "--json")
    assert 0 <= json.loads(shown.text.splitlines()[-1])["ap50"] <= 1
    images = sorted((tmp_path / "s" / "images").iterdir())[:3]
    (tmp_path / "new" / "below").mkdir(parents=True)
    for path in images:
        shutil.copy(path, tmp_path / "new" / "below")
    Image.new("RGB", (900, 2), "red").save(tmp_path / "new" / "thin.png")
    (tmp_path / "new" / "bad.jpg").write_bytes(images[0].read_bytes()[:200])
    noise = Image.effect_noise((50, 50), 90).convert("RGB")
    noise.save(tmp_path / "new" / "damaged.png")
    damaged = bytearray((tmp_path / "new" / "damaged.png").read_bytes())
    damaged[200:400] = bytes(200)  # its size can be read, its pixels cannot
    (tmp_path / "new" / "damaged.png").write_bytes(damaged)
    noise.save(tmp_path / "new" / os.fsdecode(b"no text \xff.png"))
    found = run("detect", "run", "second", "new", "--min-score", 0, "--out", "out/found.json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    for name in ("new/bad.jpg: ", "new/damaged.png: ", "'no text "):
        assert f"left out: {name}" in found.stdout
    boxes = json.loads((tmp_path / "out" / "found.json").read_text())
    names = [entry["file_name"] for entry in boxes["images"]]
    assert names == [*(f"below/{path.name}" for path in images), "thin.png"]
    assert {entry["image_id"] for entry in boxes["annotations"]} <= {entry["id"] for entry in boxes["images"]}
    thin = boxes["images"][-1]
    assert (thin["width"], thin["height"]) == (900, 2)
    rows = [entry["bbox"] for entry in boxes["annotations"] if entry["image_id"] == thin["id"]]
    assert all(width > 0 < height and y + height <= 2.01 for _, y, width, height in rows)
    assert call("export", "out/found.json", "--to", "yolo", "--out", "yolo").status == 0
    (tmp_path / "mine.json").write_text("{}")
    for where, out, message in (
        ("s/source.json", "x.json", "s/source.json"),
        ("new", "out", "is a folder"),
        ("new", "mine.json", "is not what this command writes"),
    ):
        assert message in refused("detect", "run", "second", where, "--out", out)
    assert (tmp_path / "mine.json").read_text() == "{}"
