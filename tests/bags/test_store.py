"""The store: no partial shards, the same bytes after any interruption, and damage is detected."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairloc.bags.store import Bag, BagStore, StoreWriter
from pairloc.datasets.dataset import Dataset, Image
from pairloc.errors import InputError


def dataset(count: int) -> Dataset:
    images = tuple(Image(i + 1, f"{i}.jpg", None) for i in range(count))
    return Dataset(images, ("cat", "hot dog"), tuple((i % 2,) for i in range(count)))


def bag(index: int) -> Bag:
    """A bag that depends only on its index; some are empty."""
    generator = np.random.default_rng(index)
    n = index % 4
    return Bag(
        generator.random((n, 4), dtype=np.float32),
        generator.random(n, dtype=np.float32),
        generator.random((n, 3)).astype(np.float16),
        generator.random((n, 2)).astype(np.float16),
        (10 + index, 20),
    )


def write(path: Path, count: int, shard: int, *, stop_after: int | None = None) -> None:
    with StoreWriter(path, dataset(count), {"B": 3}, shard=shard) as writer:
        for number in writer.missing()[:stop_after]:
            first, last = writer.ranges[number]
            writer.write(number, [bag(index) for index in range(first, last)])
        if stop_after is None:
            writer.finish()


def content(path: Path) -> dict[str, str]:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5))
def test_bags_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, count: int, shard: int) -> None:
    path = tmp_path_factory.mktemp("s") / "store"
    write(path, count, shard)
    store = BagStore(path)
    assert len(store) == count
    assert store.dataset.positives == dataset(count).positives
    for index in range(count):
        expected, found = bag(index), store.bag(index)
        assert found.size == expected.size
        for name in ("boxes", "objectness", "transfer", "class_features"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert store.verify() == []


@pytest.mark.parametrize("stops", [[0], [1], [2], [0, 1, 1]])
def test_a_resumed_writer_writes_the_same_bytes(tmp_path: Path, stops: list[int]) -> None:
    write(tmp_path / "whole", 11, 3)
    for stop in stops:
        write(tmp_path / "stopped", 11, 3, stop_after=stop)
        with pytest.raises(InputError, match="is not finished"):
            BagStore(tmp_path / "stopped")
    write(tmp_path / "stopped", 11, 3)
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_an_interrupted_shard_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "whole", 6, 3)
    path = tmp_path / "store"
    real, calls = np.save, []

    def failing_save(file: IO[bytes], array: np.ndarray[Any, Any], **options: bool) -> None:
        calls.append(file)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")
        real(file, array, **options)

    monkeypatch.setattr(np, "save", failing_save)
    with pytest.raises(InputError, match=r"transfer.npy: cannot be written \(no space left on device\)"):
        write(path, 6, 3)
    monkeypatch.undo()
    assert sorted(entry.name for entry in path.iterdir()) == [".lock", "plan.json", "shard-00000"]
    (path / ".shard-00001.partial").mkdir()  # left behind by a killed process
    (path / ".shard-00000.partial-0").mkdir()  # left behind by an earlier version
    write(path, 6, 3)
    assert content(path) == content(tmp_path / "whole")


def test_a_second_writer_and_another_plan_are_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", dataset(4), {"B": 3}, shard=2), pytest.raises(InputError, match="another process"):
        StoreWriter(tmp_path / "s", dataset(4), {"B": 3}, shard=2)
    for other, settings_ in ((dataset(5), {"B": 3}), (dataset(4), {"B": 4})):
        with pytest.raises(InputError, match="other images, settings or proposer"):
            StoreWriter(tmp_path / "s", other, settings_, shard=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name, message in (("mine", "already contains other files"), ("file", "is a file")):
        with pytest.raises(InputError, match=message):
            StoreWriter(tmp_path / name, dataset(4), {}, shard=2)


def test_a_changed_byte_in_any_file_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "s"
    write(path, 7, 3)
    for file in sorted(path.glob("shard-*/*")):
        original = file.read_bytes()
        changed = bytearray(original)
        changed[-2] ^= 1
        file.write_bytes(changed)
        assert any(str(file) in line for line in BagStore(path).verify()), file
        file.write_bytes(original)
    (path / "shard-00000" / "boxes.npy").unlink()
    assert any("is missing" in line for line in BagStore(path).verify())


def test_a_folder_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a bag store"):
        BagStore(tmp_path)


def test_a_store_with_missing_shards_cannot_be_finished(tmp_path: Path) -> None:
    with (
        StoreWriter(tmp_path / "s", dataset(4), {}, shard=2) as writer,
        pytest.raises(ValueError, match="2 shards are missing"),
    ):
        writer.finish()


def test_the_file_format_has_not_changed(tmp_path: Path) -> None:
    write(tmp_path / "s", 2, 2)
    key = "832daa1dc3984662b9cbbe45371186d768c56c40e2de4b904db21581769b4f2b"
    assert (tmp_path / "s" / "plan.json").read_text() == (
        '{"settings":{"B":3},"shard":2,"classes":["cat","hot dog"],"images":[{"id":1,"file":"0.jpg","tags":[0]},'
        f'{{"id":2,"file":"1.jpg","tags":[1]}}],"key":"{key}"}}\n'
    )
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    assert list(manifest) == ["made_by", "key", "shards"]
    assert (manifest["made_by"], manifest["key"]) == ("pairloc bags", key)
    (shard,) = manifest["shards"]
    assert list(shard) == ["images", "proposals", "files", "unreadable", "name"]
    assert list(shard["files"]) == ["boxes", "objectness", "transfer", "class", "offsets", "sizes"]
    assert json.loads((tmp_path / "s" / "shard-00000" / "shard.json").read_text()) | {"name": "shard-00000"} == shard


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("plan.json", lambda plan: [], "valid dictionary"),
        ("plan.json", lambda plan: plan | {"images": 3}, "images: .*not 3"),
        ("plan.json", lambda plan: plan | {"classes": ["cat"]}, "a tag that is not among the 1 classes"),
        ("plan.json", lambda plan: plan | {"images": plan["images"][:-1]}, "do not cover the 6 images of plan.json"),
        ("plan.json", lambda plan: plan | {"more": 1}, "more: "),
        ("manifest.json", lambda manifest: {"shards": []}, "made_by: "),
        ("manifest.json", lambda manifest: manifest | {"shards": manifest["shards"][1:]}, "do not cover the 7 images"),
        (
            "manifest.json",
            lambda manifest: manifest | {"shards": manifest["shards"][::-1]},
            "do not cover the 7 images",
        ),
        ("manifest.json", lambda m: m | {"shards": [m["shards"][0] | {"name": "../x"}]}, r"shards.0.name: .*'../x'"),
        ("manifest.json", lambda m: m | {"shards": [m["shards"][0] | {"files": {"../x": ""}}]}, "files are not boxes"),
    ],
)
def test_invalid_json_files_are_reported_in_one_sentence(
    tmp_path: Path, name: str, change: Callable[[Any], Any], message: str
) -> None:
    write(tmp_path / "s", 7, 3)
    file = tmp_path / "s" / name
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(InputError, match=message) as caught:
        BagStore(tmp_path / "s")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("boxes", np.zeros((3, 4))),
        ("boxes", np.zeros((2, 4), np.float32)),
        ("transfer", np.zeros(3, np.float16)),
        ("offsets", np.array([0, 2, 1, 3])),
        ("offsets", np.array([0, 0, 1, 9])),
        ("sizes", np.zeros((3, 3), np.int32)),
        ("class", np.array([None] * 3)),
    ],
)
def test_invalid_arrays_are_reported(tmp_path: Path, name: str, array: np.ndarray[Any, Any]) -> None:
    write(tmp_path / "s", 3, 3)
    np.save(tmp_path / "s" / "shard-00000" / f"{name}.npy", array)
    with pytest.raises(InputError, match=rf"{name}.npy: is damaged .*'pairloc bags verify'"):
        BagStore(tmp_path / "s").bag(0)
