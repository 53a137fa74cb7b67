"""The store: whole shards or none, the same bytes however it was written, and damage that is found."""

import hashlib
from pathlib import Path
from typing import Any

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
    """A bag that depends on its index alone; some are empty."""
    generator = np.random.default_rng(index)
    n = index % 4
    return Bag(
        generator.random((n, 4), dtype=np.float32),
        generator.random(n, dtype=np.float32),
        generator.random((n, 3)).astype(np.float16),
        generator.random((n, 2)).astype(np.float16),
        (10 + index, 20),
    )


def write(path: Path, count: int, shard: int, *, rank: int = 0, world: int = 1, stop_after: int | None = None) -> bool:
    with StoreWriter(path, dataset(count), {"B": 3}, shard=shard, rank=rank, world=world) as writer:
        for number in writer.missing()[:stop_after]:
            first, last = writer.ranges[number]
            writer.write(number, [bag(index) for index in range(first, last)])
        return writer.finish()


def content(path: Path) -> dict[str, str]:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5))
def test_bags_come_back(tmp_path_factory: pytest.TempPathFactory, count: int, shard: int) -> None:
    path = tmp_path_factory.mktemp("s") / "store"
    assert write(path, count, shard)
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
def test_a_stopped_run_goes_on_to_the_same_bytes(tmp_path: Path, stops: list[int]) -> None:
    assert write(tmp_path / "whole", 11, 3)
    for stop in stops:
        assert not write(tmp_path / "stopped", 11, 3, stop_after=stop)
        with pytest.raises(InputError, match="is not finished"):
            BagStore(tmp_path / "stopped")
    assert write(tmp_path / "stopped", 11, 3)
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_an_interrupted_shard_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write(tmp_path / "whole", 6, 3)
    path = tmp_path / "store"
    real, calls = np.save, []

    def breaks(file: Path, array: np.ndarray[Any, Any]) -> None:
        calls.append(file)
        if len(calls) == 9:
            raise OSError(28, "No space left on device")
        real(file, array)

    monkeypatch.setattr(np, "save", breaks)
    with pytest.raises(OSError, match="No space left"):
        write(path, 6, 3)
    monkeypatch.undo()
    assert sorted(entry.name for entry in path.iterdir()) == ["plan.json", "shard-00000"]
    (path / ".shard-00001.partial-0").mkdir()  # as a kill would leave it
    assert write(path, 6, 3)
    assert content(path) == content(tmp_path / "whole")


def test_two_processes_write_what_one_does(tmp_path: Path) -> None:
    assert write(tmp_path / "one", 11, 2)
    assert not write(tmp_path / "two", 11, 2, rank=1, world=2)
    assert write(tmp_path / "two", 11, 2, rank=0, world=2)
    assert content(tmp_path / "two") == content(tmp_path / "one")


def test_a_second_writer_and_another_plan_are_refused(tmp_path: Path) -> None:
    with StoreWriter(tmp_path / "s", dataset(4), {"B": 3}, shard=2), pytest.raises(InputError, match="another process"):
        StoreWriter(tmp_path / "s", dataset(4), {"B": 3}, shard=2)
    for other, settings_ in ((dataset(5), {"B": 3}), (dataset(4), {"B": 4})):
        with pytest.raises(InputError, match="other images, settings or proposer"):
            StoreWriter(tmp_path / "s", other, settings_, shard=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name, message in (("mine", "already holds other work"), ("file", "is a file")):
        with pytest.raises(InputError, match=message):
            StoreWriter(tmp_path / name, dataset(4), {}, shard=2)


def test_a_flipped_byte_in_any_file_is_found(tmp_path: Path) -> None:
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
    assert any("is gone" in line for line in BagStore(path).verify())


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a bag store"):
        BagStore(tmp_path)
