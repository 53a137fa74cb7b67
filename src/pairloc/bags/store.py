"""The bag store: memory-mapped shards that any machine can map, written so that a killed run goes on where it stopped.

    STORE/plan.json        what is to be in it: settings, images, tags; its key is the hash of all that
    STORE/shard-00000/     boxes, objectness, transfer, class, offsets, sizes (.npy) and shard.json with their hashes
    STORE/manifest.json    written last: the shards and their hashes

A shard is written under another name and renamed when it is whole, so an interrupted one is never read.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pairloc.datasets.dataset import Dataset, Image
from pairloc.errors import InputError
from pairloc.io import MANIFEST, read_json, reason, sha256, write_json

PLAN = "plan.json"
ARRAYS = {"boxes": np.float32, "objectness": np.float32, "transfer": np.float16, "class": np.float16}
_REST = ("offsets", "sizes")


@dataclass(frozen=True)
class Bag:
    """The proposals of one image."""

    boxes: npt.NDArray[np.float32]  # (n, 4)
    objectness: npt.NDArray[np.float32]  # (n,) logits
    transfer: npt.NDArray[np.float16]  # (n, d) features of the proposer's box head
    class_features: npt.NDArray[np.float16]  # (n, d') features of an independent network
    size: tuple[int, int]  # (width, height) of the picture as shown; (0, 0) where it could not be read


def store_key(content: object) -> str:
    """The hash of settings and inputs."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class StoreWriter:
    """Writes the shards of a store. Several processes (`rank` of `world`) may write one store side by side."""

    def __init__(
        self, path: Path, dataset: Dataset, settings: Mapping[str, Any], *, shard: int, rank: int = 0, world: int = 1
    ) -> None:
        self.path, self.rank, self.world, self.shard = path, rank, world, shard
        images = [
            {"id": image.id, "file": image.file, "tags": list(tags)}
            for image, tags in zip(dataset.images, dataset.tags, strict=True)
        ]
        plan = {"settings": dict(settings), "shard": shard, "classes": list(dataset.classes), "images": images}
        self.plan = plan | {"key": store_key(plan)}
        self.ranges = [(a, min(a + shard, len(images))) for a in range(0, len(images), shard)]
        self._claim()

    def _claim(self) -> None:
        """Take the store for this process, or refuse: another writer, or a store of something else."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is a file; a store is a folder")
        known = self.path / PLAN
        if self.path.is_dir() and not known.is_file() and any(not f.name.startswith(".") for f in self.path.iterdir()):
            raise InputError(f"{self.path}: already holds other work; name another folder, or delete this one")
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / f".lock-{self.rank}").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise InputError(f"{self.path}: another process is writing this store; wait for it, or stop it") from error
        if known.is_file():
            if read_json(known).get("key") != self.plan["key"]:
                self.close()
                remedy = "name another folder, or delete this one"
                raise InputError(f"{self.path}: is a store of other images, settings or proposer; {remedy}")
        else:  # processes side by side write the same plan
            partial = self.path / f".{PLAN}.partial-{self.rank}"
            write_json(partial, self.plan)
            partial.replace(known)
        for leftover in self.path.glob(f".shard-*.partial-{self.rank}"):
            shutil.rmtree(leftover)

    def close(self) -> None:
        """Let go of the store."""
        self._lock.close()
        (self.path / f".lock-{self.rank}").unlink(missing_ok=True)

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def missing(self) -> list[int]:
        """The shards of this process that are not there yet."""
        mine = range(self.rank, len(self.ranges), self.world)
        return [number for number in mine if not (self.path / _name(number)).is_dir()]

    def write(self, number: int, bags: Sequence[Bag], unreadable: Sequence[str] = ()) -> None:
        """Write a shard whole."""
        first, last = self.ranges[number]
        if len(bags) != last - first:
            raise ValueError(f"shard {number} has {last - first} images, not {len(bags)}")
        partial = self.path / f".{_name(number)}.partial-{self.rank}"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            columns: dict[str, list[npt.NDArray[Any]]] = {
                "boxes": [bag.boxes for bag in bags],
                "objectness": [bag.objectness for bag in bags],
                "transfer": [bag.transfer for bag in bags],
                "class": [bag.class_features for bag in bags],
            }
            for name, parts in columns.items():
                np.save(partial / f"{name}.npy", np.concatenate(parts).astype(ARRAYS[name]))
            offsets = np.concatenate([[0], np.cumsum([len(bag.boxes) for bag in bags])]).astype(np.int64)
            np.save(partial / "offsets.npy", offsets)
            np.save(partial / "sizes.npy", np.array([bag.size for bag in bags], dtype=np.int32).reshape(-1, 2))
            hashes = {name: sha256(partial / f"{name}.npy") for name in (*ARRAYS, *_REST)}
            facts = {
                "images": [first, last],
                "proposals": int(offsets[-1]),
                "files": hashes,
                "unreadable": list(unreadable),
            }
            write_json(partial / "shard.json", facts)
            partial.rename(self.path / _name(number))
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise

    def finish(self) -> bool:
        """Write the manifest if all shards of all processes are there; whether it is."""
        shards = [self.path / _name(number) for number in range(len(self.ranges))]
        if not all(shard.is_dir() for shard in shards):
            return False
        facts = [read_json(shard / "shard.json") | {"name": shard.name} for shard in shards]
        partial = self.path / f".{MANIFEST}.partial-{os.getpid()}"
        write_json(partial, {"made_by": "pairloc bags", "key": self.plan["key"], "shards": facts})
        partial.replace(self.path / MANIFEST)
        return True


class BagStore:
    """A finished store, mapped: reading the bags of a class touches their pages alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / PLAN).is_file():
            raise InputError(f"{path}: is not a bag store: it has no {PLAN}")
        if not (path / MANIFEST).is_file():
            raise InputError(f"{path}: is not finished; run the same 'pairloc bags extract' again to go on")
        self.plan, self.manifest = read_json(path / PLAN), read_json(path / MANIFEST)
        try:
            images = tuple(Image(entry["id"], entry["file"], None) for entry in self.plan["images"])
            tags = tuple(tuple(entry["tags"]) for entry in self.plan["images"])
            self.dataset = Dataset(images, tuple(self.plan["classes"]), tags)
            self._shards = [path / shard["name"] for shard in self.manifest["shards"]]
            self._first = [int(shard["images"][0]) for shard in self.manifest["shards"]]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: is not a bag store ({reason(error)})") from error

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def unreadable(self) -> list[str]:
        """What was said of pictures that could not be read."""
        return [str(line) for shard in self.manifest["shards"] for line in shard["unreadable"]]

    @cached_property
    def _arrays(self) -> list[dict[str, npt.NDArray[Any]]]:
        return [{name: self._map(shard / f"{name}.npy") for name in (*ARRAYS, *_REST)} for shard in self._shards]

    @staticmethod
    def _map(file: Path) -> npt.NDArray[Any]:
        try:
            array: npt.NDArray[Any] = np.load(file, mmap_mode="r" if file.stat().st_size > 1 << 16 else None)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{file}: is damaged ({reason(error)}); 'pairloc bags verify' lists what is") from error
        return array

    def bag(self, index: int) -> Bag:
        """The proposals of one image."""
        place = int(np.searchsorted(self._first, index, side="right")) - 1
        arrays, row = self._arrays[place], index - self._first[place]
        rows = slice(int(arrays["offsets"][row]), int(arrays["offsets"][row + 1]))
        width, height = arrays["sizes"][row].tolist()
        return Bag(
            arrays["boxes"][rows],
            arrays["objectness"][rows],
            arrays["transfer"][rows],
            arrays["class"][rows],
            (width, height),
        )

    def info(self) -> dict[str, object]:
        """What is in the store."""
        proposals = sum(int(shard["proposals"]) for shard in self.manifest["shards"])
        sample = self._arrays[0] if self._arrays else {}
        size = sum(file.stat().st_size for shard in self._shards for file in shard.iterdir())
        return {
            "images": len(self),
            "classes": len(self.dataset.classes),
            "proposals": proposals,
            "proposals per image": round(proposals / max(len(self), 1), 1),
            "transfer d": int(sample["transfer"].shape[1]) if sample else 0,
            "class d": int(sample["class"].shape[1]) if sample else 0,
            "shards": len(self._shards),
            "MB": round(size / 1e6, 1),
            "unreadable pictures": len(self.unreadable),
            "settings": self.plan["settings"],
        }

    def verify(self) -> list[str]:
        """Every file whose content is not what was written, and every one that is gone."""
        bad = []
        plan = {key: value for key, value in self.plan.items() if key != "key"}
        if store_key(plan) != self.plan.get("key") or self.manifest.get("key") != self.plan.get("key"):
            bad.append(f"{self.path / PLAN}: does not have the key it was written with")
        for shard, facts in zip(self._shards, self.manifest["shards"], strict=True):
            written = {key: value for key, value in facts.items() if key != "name"}
            try:
                own = read_json(shard / "shard.json")
            except InputError:
                own = None
            if own != written:
                bad.append(f"{shard / 'shard.json'}: is not what the manifest says")
            for name, expected in facts["files"].items():
                file = shard / f"{name}.npy"
                if not file.is_file():
                    bad.append(f"{file}: is gone")
                elif sha256(file) != expected:
                    bad.append(f"{file}: is not what was written")
        return bad


def _name(number: int) -> str:
    return f"shard-{number:05d}"
