"""Symbolic links, damage and other files in the folder of a run: nothing is lost or hidden."""

import json
import shutil
from pathlib import Path

import pytest

from helpers import results
from pairloc.presets import read_config
from pairloc.runs.run import Run
from pairloc.runs.runner import UNUSABLE
from pairloc.runs.sealing import SEAL, broken
from runs.calling import call, copied, flip, refused, title

FOREIGN = '{"mine": "do not touch"}'


@pytest.mark.parametrize(
    "name", ["config.json", "boxes.json", ".lock", "seal.json", "full/history.json", "full", "report/images", "aside"]
)
def test_symbolic_links_are_refused_and_their_targets_unchanged(
    config: Path, finished_run: Path, tmp_path: Path, name: str
) -> None:
    folder, link = copied(finished_run, tmp_path / "run"), tmp_path / "run" / name
    outside, moved = tmp_path / "outside", tmp_path / "moved"
    if link.exists():
        link.rename(moved)
    if name in ("full", "report/images", "aside"):
        outside.mkdir()
        (outside / "mine.json").write_text(FOREIGN)
    else:
        outside.write_text(FOREIGN)
    if name == "full/history.json":
        (folder / "full" / "done.json").unlink()
    link.symlink_to(outside)
    files = [outside] if outside.is_file() else sorted(outside.rglob("*"))
    message = refused("run", config, "--out", folder)
    assert str(folder) in message
    assert [file.read_text() for file in files] == [FOREIGN]
    assert outside.is_file() or sorted(outside.rglob("*")) == files
    assert link.is_symlink()
    link.unlink()
    if moved.exists():
        moved.rename(link)
    assert call("run", config, "--out", folder).status == 0
    assert broken(folder) == []


def test_dangling_links_are_not_followed(config: Path, finished_run: Path, tmp_path: Path) -> None:
    folder = copied(finished_run, tmp_path / "run")
    for name in ("skipped.txt", ".lock"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(tmp_path / "new")
        refused("run", config, "--out", folder)
        assert not (tmp_path / "new").exists()
        (folder / name).unlink()


@pytest.mark.parametrize(
    "name",
    [
        "full/boxes.json", "bags/target/shard-00000/transfer.npy", "full/state.safetensors", "report/report.html",
        "evaluation/evaluation.json", "transfer/transfer.safetensors", "full/done.json", "full/begun.json",
    ],
)  # fmt: skip
def test_damage_is_reported_and_repaired(config: Path, finished_run: Path, tmp_path: Path, name: str) -> None:
    """`verify` fails after the damage; the same command repeats the stage and logs it; then `verify` passes."""
    folder = copied(finished_run, tmp_path / "run")
    flip(folder / name)
    damaged = (folder / name).read_bytes()
    found = call("verify", folder)
    assert found.status == 1
    assert f"{folder / name}: has changed since it was written" in found.text
    stage = name.split("/", maxsplit=1)[0]
    again = call("run", config, "--out", folder)
    assert again.status == 0
    assert call("verify", folder).status == 0
    if name.endswith(("boxes.json", "npy", "safetensors")):
        assert (
            f"{title(stage)}: the earlier result is damaged ({folder / name}: has changed since it was written)"
            in again.text
        )
        kept = [file for file in (folder / "aside").rglob(Path(name).name) if file.read_bytes() == damaged]
        assert len(kept) == 1
        assert kept[0].is_relative_to(next((folder / "aside").glob(f"{stage}-{UNUSABLE}-*")))
        assert f"{title(stage)} ..." in again.text
    now = {file: content for file, content in results(folder).items() if not file.startswith("aside")}
    assert now == results(finished_run)
    assert call("run", config, "--out", folder).text.count("...") == 0


def test_sealing_again_does_not_hide_damage(config: Path, finished_run: Path, tmp_path: Path) -> None:
    """Neither a run that does not use the stage nor sealing again makes it pass `verify`."""
    folder = copied(finished_run, tmp_path / "run")
    flip(folder / "fine-tuned" / "boxes.json")
    flip(folder / "full" / "history.json")
    assert call("run", config, "--out", folder, "--dry-run").status == 0
    assert call("report", folder, "--out", tmp_path / "r.html").status in (0, 2)
    assert call("verify", folder).status == 1
    before = (folder / "fine-tuned" / "boxes.json").read_bytes()
    (folder / SEAL).unlink()
    assert call("verify", folder).status == 2  # no seal at all
    Run(folder, read_config(config, ['methods=["warm-up-unary", "full"]']), log=lambda line: None).run()
    assert (folder / "fine-tuned" / "boxes.json").read_bytes() == before  # no longer part of this run, so unchanged
    assert not any(name.startswith("fine-tuned/") for name in json.loads((folder / SEAL).read_text())["files"])
    assert call("verify", folder).status == 0
    lines: list[str] = []
    Run(folder, read_config(config), log=lines.append).run()
    assert any(line.startswith(f"{title('fine-tuned')}: the earlier result is damaged") for line in lines)
    assert results(folder)["fine-tuned/boxes.json"] == results(finished_run)["fine-tuned/boxes.json"]
    assert broken(folder) == []


def test_a_damaged_stage_is_not_reused(config: Path, finished_run: Path, tmp_path: Path) -> None:
    """A damaged result stays aside; after a change of settings and back, the good one is reused."""
    folder = copied(finished_run, tmp_path / "run")
    flip(folder / "full" / "boxes.json")
    lines: list[str] = []
    for changes in ([], ["localization.boxes.voting_iou=0.5"], []):
        lines.clear()
        Run(folder, read_config(config, changes), log=lines.append).run()
    assert f"{title('full')}: reusing the earlier result with these settings" in lines
    assert f"{title('full')} ..." not in lines
    assert (folder / "full" / "boxes.json").read_bytes() == (finished_run / "full" / "boxes.json").read_bytes()


def test_a_changed_seal_is_detected(finished_run: Path, tmp_path: Path) -> None:
    folder = copied(finished_run, tmp_path / "run")
    seal = json.loads((folder / SEAL).read_text())
    seal["files"].pop("full/boxes.json")
    (folder / SEAL).write_text(json.dumps(seal))
    assert broken(folder) == [f"{folder / SEAL}: has changed since it was written"]
    for content in ("[]", "{", '{"files": {}}'):
        (folder / SEAL).write_text(content)
        assert broken(folder) == [f"{folder / SEAL}: is damaged"]


def test_a_result_that_the_user_changed_is_kept_aside(config: Path, finished_run: Path, tmp_path: Path) -> None:
    folder = copied(finished_run, tmp_path / "run")
    (folder / "boxes.json").write_text("corrected by hand")
    message = call("run", config, "--out", folder).text
    assert "boxes.json: was changed since it was written; kept as aside/boxes.json-" in message
    assert [file.read_text() for file in (folder / "aside").iterdir()] == ["corrected by hand"]
    assert (folder / "boxes.json").read_bytes() == (finished_run / "boxes.json").read_bytes()
    assert broken(folder) == []


def arguments(finished_run: Path, out: Path, *more: object) -> tuple[object, ...]:
    """Return the arguments of `localize` for the scenes and the weights of the tiny run."""
    scenes = finished_run / "data" / "scenes"
    tags = () if "--tags" in more else ("--tags", scenes / "target_tags.csv")
    return ("localize", scenes / "images", *tags, "--out", out, "--weights", finished_run, *more)


@pytest.mark.parametrize("name", ["boxes.json", "report.html", "config.json", "notes.txt", "bags"])
@pytest.mark.parametrize("content", [FOREIGN, "[1, 2]", "no JSON"])
def test_other_files_in_the_output_folder_are_named_and_unchanged(
    finished_run: Path, tmp_path: Path, name: str, content: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text(content)
    message = refused(*arguments(finished_run, out))
    assert name in message
    assert {file.name: file.read_text() for file in out.iterdir()} == {name: content}


def test_an_input_inside_the_output_folder_is_refused(finished_run: Path, localized: Path, tmp_path: Path) -> None:
    out = copied(localized, tmp_path / "out")
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    message = refused(*arguments(finished_run, out, "--tags", out / "boxes.json"))
    assert f"{out / 'boxes.json'}: is inside the output folder" in message
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    link = tmp_path / "link"
    link.symlink_to(out)
    assert "is inside" in refused(*arguments(finished_run, out, "--tags", link / "boxes.json"))


def test_repeating_localize_does_nothing_and_other_settings_keep_the_first_result_aside(
    finished_run: Path, localized: Path, tmp_path: Path
) -> None:
    out = copied(localized, tmp_path / "out")
    again = call(*arguments(finished_run, out))
    assert again.status == 0
    assert "..." not in again.text
    other = call(*arguments(finished_run, out, "--rounds", 0))
    why = "the earlier result was made with other settings or inputs"
    assert f"choosing a box for every tag: {why}; it is kept in {out / 'aside'}" in other.text
    assert [folder.name.rpartition("-")[0] for folder in (out / "aside").iterdir()] == ["full"]
    assert call("verify", out).status == 0


def test_the_format_option_is_used(finished_run: Path, tmp_path: Path) -> None:
    """One folder per class that also contains a CSV of other classes, and tags in a file with a neutral name."""
    images = sorted((finished_run / "data" / "scenes" / "images").glob("target*"))[:6]
    for index, image in enumerate(images):
        folder = tmp_path / "fold" / ("cup" if index % 2 else "bird")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / image.name).write_bytes(image.read_bytes())
    rows = "".join(f"{'cup' if index % 2 else 'bird'}/{image.name},wrong\n" for index, image in enumerate(images))
    (tmp_path / "fold" / "list.csv").write_text("image,labels\n" + rows)
    (tmp_path / "tags.txt").write_text("image,labels\n" + rows.replace("wrong", "right"))

    def classes(tags: Path, *more: object) -> set[str]:
        out = tmp_path / f"out-{tags.name}-{len(more)}"
        done = call(
            "localize", tmp_path / "fold", "--tags", tags, "--out", out, "--weights", finished_run, "--rounds", 0, *more
        )
        assert done.status == 0, done.text
        return {entry["name"] for entry in json.loads((out / "boxes.json").read_text())["categories"]}

    assert classes(tmp_path / "fold", "--format", "folders") == {"bird", "cup"}
    assert classes(tmp_path / "fold") == {"wrong"}
    assert classes(tmp_path / "tags.txt", "--format", "csv") == {"right"}


def test_skipped_images_are_listed_until_they_are_repaired(finished_run: Path, tmp_path: Path) -> None:
    images = sorted((finished_run / "data" / "scenes" / "images").glob("target*"))[:5]
    (tmp_path / "images").mkdir()
    for image in images:
        (tmp_path / "images" / image.name).write_bytes(image.read_bytes())
    broken_one = tmp_path / "images" / images[0].name
    broken_one.write_bytes(b"no image")
    tags = tmp_path / "tags.csv"
    rows = [f"{image.name},cup" for image in images]
    tags.write_text("image,labels\n" + "\n".join(rows) + "\n")
    out = tmp_path / "out"
    command = ("localize", tmp_path / "images", "--tags", tags, "--out", out, "--weights", finished_run, "--rounds", 0)
    first = call(*command)
    assert first.status == 0, first.text
    assert f"1 images were left out: {broken_one}" in first.text
    assert images[0].name in (out / "skipped.txt").read_text()
    assert call("verify", out).status == 0

    broken_one.write_bytes(images[0].read_bytes())  # repaired, and the bags removed
    assert "after repairing them, choose another output folder" in first.text
    for file in sorted((out / "bags").rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    (out / "bags").rmdir()
    repaired = call(*command)
    assert "the earlier result depends on results that have been recomputed" in repaired.text
    assert not (out / "skipped.txt").exists()
    assert len(json.loads((out / "boxes.json").read_text())["annotations"]) == 5
    assert call("verify", out).status == 0

    broken_one.write_bytes(b"no image")  # its row is removed instead
    tags.write_text("image,labels\n" + "\n".join(rows[1:]) + "\n")
    assert call(*command).status == 0
    assert not (out / "skipped.txt").exists()
    assert call("verify", out).status == 0


def test_a_page_is_not_written_through_a_linked_folder(finished_run: Path, tmp_path: Path) -> None:
    page, victim = tmp_path / "r" / "x.html", tmp_path / "victim"
    page.parent.mkdir()
    victim.mkdir()
    command = ("report", finished_run, "--out", page, "--embed", 0)
    assert call(*command).status == 0
    shutil.rmtree(page.with_name("x_files"))
    page.with_name("x_files").symlink_to(victim)
    assert "is a symbolic link" in refused(*command)
    assert list(victim.iterdir()) == []


def test_other_commands_do_not_write_into_a_run(finished_run: Path, tmp_path: Path) -> None:
    folder = copied(finished_run, tmp_path / "run")
    images = finished_run / "data" / "scenes" / "images"
    message = refused("detect", "run", finished_run / "proposer", images, "--out", folder / "boxes.json")
    assert "is the folder of a run" in message
    assert not broken(folder)


def test_clean_removes_nothing_from_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "aside" / "thesis").mkdir(parents=True)
    (tmp_path / "seal.json").write_text("{}")
    refused("clean", tmp_path, "--yes")
    assert (tmp_path / "aside" / "thesis").is_dir()


def test_a_damaged_shard_of_an_unfinished_extraction_is_written_again(
    config: Path, finished_run: Path, tmp_path: Path
) -> None:
    folder = copied(finished_run, tmp_path / "run")
    array = folder / "bags" / "target" / "shard-00000" / "transfer.npy"
    before = array.read_bytes()
    (folder / "bags" / "done.json").unlink()
    flip(array)
    assert call("run", config, "--out", folder).status == 0
    assert array.read_bytes() == before


def test_repaired_images_are_mentioned_whenever_a_run_is_repeated(finished_run: Path, tmp_path: Path) -> None:
    scenes = finished_run / "data" / "scenes"
    names = sorted(file.name for file in (scenes / "images").glob("target*"))[:3]
    (tmp_path / "images").mkdir()
    for name in names:
        (tmp_path / "images" / name).write_bytes((scenes / "images" / name).read_bytes())
    (tmp_path / "images" / names[0]).write_bytes(b"no image")
    (tmp_path / "tags.csv").write_text("image,label\n" + "".join(f"{name},cat\n" for name in names))
    command = (
        "localize", tmp_path / "images", "--tags", tmp_path / "tags.csv", "--out", tmp_path / "out",
        "--weights", finished_run, "--rounds", 0,
    )  # fmt: skip
    for _ in range(2):
        assert "1 images were left out" in call(*command).text


def test_files_that_a_killed_process_left_are_removed_and_others_kept(
    config: Path, finished_run: Path, tmp_path: Path
) -> None:
    folder = copied(finished_run, tmp_path / "run")
    leftover, mine = folder / "proposer" / ".0a1b2c3d.partial-123", folder / ".mine.partial-x"
    leftover.write_bytes(b"half")
    mine.write_text(FOREIGN)
    assert call("run", config, "--out", folder).status == 0
    assert not leftover.exists()
    assert mine.read_text() == FOREIGN
