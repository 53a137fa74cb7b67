"""The bag store: bags on disk in memory-mapped shards; an interrupted extraction resumes with the missing shards.

    STORE/plan.json        the intended content (settings, images, tags) and its hash, the cache key
    STORE/shard-00000/     boxes, objectness, transfer, class, offsets, sizes (.npy) and shard.json with their hashes
    STORE/manifest.json    written last: the shards and their hashes

A shard is written under a temporary name and renamed when it is complete, so a partial one is never read.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from pairloc.datasets.dataset import Dataset, Image
from pairloc.errors import InputError
from pairloc.io import (
    MANIFEST,
    REMEDY,
    damaged_files,
    file_hashes,
    read_model,
    reason,
    refuse_other_work,
    write_array,
    write_json,
)
from pairloc.platform import locked

PLAN, FACTS = "plan.json", "shard.json"
ARRAYS = {"boxes": np.float32, "objectness": np.float32, "transfer": np.float16, "class": np.float16}
_DTYPES = ARRAYS | {"offsets": np.int64, "sizes": np.int32}
_VERIFY = "'pairloc bags verify' lists what is damaged"
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Bag:
    """The proposals of one image."""

    boxes: npt.NDArray[np.float32]  # (n, 4)
    objectness: npt.NDArray[np.float32]  # (n,) logits
    transfer: npt.NDArray[np.float16]  # (n, d) features of the proposer's box head
    class_features: npt.NDArray[np.float16]  # (n, d') features of an independent network
    size: tuple[int, int]  # (width, height) of the image as displayed; (0, 0) if it could not be read


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _PlannedImage(_File):
    id: int | str
    file: str
    tags: tuple[_Count, ...]


class Plan(_File):
    """The content of plan.json."""

    settings: dict[str, Any]
    shard: int = Field(ge=1)
    classes: tuple[str, ...]
    images: tuple[_PlannedImage, ...]
    key: str

    @model_validator(mode="after")
    def _tags_are_classes(self) -> "Plan":
        if any(tag >= len(self.classes) for image in self.images for tag in image.tags):
            raise ValueError(f"an image has a tag that is not among the {len(self.classes)} classes")
        return self


class ShardFacts(_File):
    """The content of shard.json."""

    images: tuple[_Count, _Count]  # index of the first image, and one past the last
    proposals: _Count
    files: dict[str, str]  # array name -> hash
    unreadable: tuple[str, ...]

    @model_validator(mode="after")
    def _has_all_arrays(self) -> "ShardFacts":
        if self.files.keys() != _DTYPES.keys():
            raise ValueError(f"files are not {', '.join(_DTYPES)}")
        return self


class NamedShard(ShardFacts):
    """An entry of the manifest: a shard with its folder name."""

    name: str = Field(pattern=r"^shard-[0-9]{5,9}$")


class Manifest(_File):
    """The content of manifest.json."""

    made_by: str
    key: str
    shards: tuple[NamedShard, ...]


def store_key(content: object) -> str:
    """Cache key: the hash of settings and inputs."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class StoreWriter:
    """Writes the shards of a store; a lock keeps other processes out.

    Use it as a context manager: write the `missing` shards, then `finish`. `ranges` lists the images of each shard as
    (first, one past the last). Raises an InputError if the folder holds something else or another process writes it.
    """

    def __init__(self, path: Path, dataset: Dataset, settings: Mapping[str, Any], *, shard: int) -> None:
        self.path = path
        images = [
            {"id": image.id, "file": image.file, "tags": list(tags)}
            for image, tags in zip(dataset.images, dataset.tags, strict=True)
        ]
        plan = {"settings": dict(settings), "shard": shard, "classes": list(dataset.classes), "images": images}
        self.key = store_key(plan)
        self.ranges = [(a, min(a + shard, len(images))) for a in range(0, len(images), shard)]
        self._lock = ExitStack()
        try:
            self._claim(plan)
        except BaseException:
            self.close()
            raise

    def _claim(self, plan: dict[str, Any]) -> None:
        """Lock the store and write its plan, or check that the existing plan is the same."""
        refuse_other_work(self.path, lambda folder: (folder / PLAN).is_file())
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written to ({reason(error)})") from error
        refusal = f"{self.path}: another process is writing this store; wait for it, or stop it"
        self._lock.enter_context(locked(self.path / ".lock", refusal))
        plan_file = self.path / PLAN
        if not plan_file.is_file():
            write_json(plan_file, plan | {"key": self.key})
        elif read_model(plan_file, Plan).key != self.key:
            raise InputError(f"{self.path}: is a store of other images, settings or proposer; {REMEDY}")
        for leftover in self.path.glob(".shard-*.partial*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def missing(self) -> list[int]:
        """Numbers of the shards that are not written yet; damaged ones are removed, so that they are written again."""
        numbers = []
        for number in range(len(self.ranges)):
            shard = self.path / _name(number)
            if shard.is_dir() and not _intact(shard):
                shutil.rmtree(shard)
            if not shard.is_dir():
                numbers.append(number)
        return numbers

    def write(self, number: int, bags: Sequence[Bag], unreadable: Sequence[str] = ()) -> None:
        """Write the bags of one shard, and the error messages of its unreadable images."""
        first, last = self.ranges[number]
        if len(bags) != last - first:
            raise ValueError(f"shard {number} has {last - first} images, not {len(bags)}")
        offsets = np.concatenate([[0], np.cumsum([len(bag.boxes) for bag in bags])])
        columns: dict[str, npt.NDArray[Any]] = {
            "boxes": np.concatenate([bag.boxes for bag in bags]),
            "objectness": np.concatenate([bag.objectness for bag in bags]),
            "transfer": np.concatenate([bag.transfer for bag in bags]),
            "class": np.concatenate([bag.class_features for bag in bags]),
            "offsets": offsets,
            "sizes": np.array([bag.size for bag in bags]).reshape(-1, 2),
        }
        shard = self.path / _name(number)
        partial = self.path / f".{_name(number)}.partial"
        try:
            partial.mkdir()
            for name, column in columns.items():
                write_array(partial / f"{name}.npy", column.astype(_DTYPES[name]))
            hashes = file_hashes(partial, [f"{name}.npy" for name in columns])
            facts = ShardFacts(
                images=(first, last),
                proposals=int(offsets[-1]),
                files={name: hashes[f"{name}.npy"] for name in columns},
                unreadable=tuple(unreadable),
            )
            write_json(partial / FACTS, facts.model_dump())
            partial.rename(shard)
        except OSError as error:
            raise InputError(f"{shard}: cannot be written ({reason(error)})") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def finish(self) -> None:
        """Write the manifest, which marks the store as finished."""
        missing = [number for number in range(len(self.ranges)) if not (self.path / _name(number)).is_dir()]
        if missing:
            raise ValueError(f"{self.path}: {len(missing)} shards are missing")
        names = [_name(number) for number in range(len(self.ranges))]
        shards = [read_model(self.path / name / FACTS, ShardFacts).model_dump() | {"name": name} for name in names]
        write_json(self.path / MANIFEST, {"made_by": "pairloc bags", "key": self.key, "shards": shards})


def written(store: Path) -> tuple[int, int]:
    """How many images of an unfinished or finished store have their bags, and of how many."""
    plan = read_model(store / PLAN, Plan)
    facts = [read_model(shard / FACTS, ShardFacts) for shard in sorted(store.glob("shard-*")) if shard.is_dir()]
    return sum(entry.images[1] - entry.images[0] for entry in facts), len(plan.images)


def _intact(shard: Path) -> bool:
    """Whether the arrays of a shard have the hashes that were written with them."""
    try:
        facts = read_model(shard / FACTS, ShardFacts)
    except InputError:
        return False
    return not damaged_files(shard, {f"{name}.npy": value for name, value in facts.files.items()})


class BagStore:
    """A finished store, memory-mapped, so that only the bags that are used are read from disk.

    Raises an InputError if the folder is not a store, is unfinished or is inconsistent.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / PLAN).is_file():
            raise InputError(f"{path}: is not a bag store: it has no {PLAN}")
        if not (path / MANIFEST).is_file():
            raise InputError(f"{path}: is not finished; run the same 'pairloc bags extract' again to resume it")
        self.plan, self.manifest = read_model(path / PLAN, Plan), read_model(path / MANIFEST, Manifest)
        images = tuple(Image(image.id, image.file, None) for image in self.plan.images)
        self.dataset = Dataset(images, self.plan.classes, tuple(image.tags for image in self.plan.images))
        self._first = [shard.images[0] for shard in self.manifest.shards]
        edges = [0, *(shard.images[1] for shard in self.manifest.shards)]
        if self._first != edges[:-1] or edges[-1] != len(images) or any(a >= b for a, b in pairwise(edges)):
            raise InputError(f"{path / MANIFEST}: its shards do not cover the {len(images)} images of {PLAN} in order")

    def __getstate__(self) -> dict[str, object]:
        """Pickle without the maps: another process maps the files itself, when it needs a bag."""
        return {name: value for name, value in self.__dict__.items() if name != "_arrays"}

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def unreadable(self) -> list[str]:
        """Error messages of the images that could not be read."""
        return [line for shard in self.manifest.shards for line in shard.unreadable]

    @cached_property
    def _arrays(self) -> list[dict[str, npt.NDArray[Any]]]:
        return [{name: self._map(shard, name) for name in _DTYPES} for shard in self.manifest.shards]

    def _map(self, shard: NamedShard, name: str) -> npt.NDArray[Any]:
        """Map an array of a shard; raise an InputError if its shape or type is not that of the shard."""
        file = self.path / shard.name / f"{name}.npy"
        try:
            array: npt.NDArray[Any] = np.load(file, mmap_mode="r" if file.stat().st_size > 1 << 16 else None)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{file}: is damaged ({reason(error)}); {_VERIFY}") from error
        n = shard.images[1] - shard.images[0]
        shape = {"offsets": (n + 1,), "sizes": (n, 2), "boxes": (shard.proposals, 4)}.get(name, (shard.proposals,))
        dimensions = 2 if name in ("boxes", "transfer", "class", "sizes") else 1
        intact = array.dtype == _DTYPES[name] and array.ndim == dimensions and array.shape[: len(shape)] == shape
        if intact and name == "offsets":
            intact = array[0] == 0 and array[-1] == shard.proposals and bool((np.diff(array) >= 0).all())
        if not intact:
            raise InputError(f"{file}: is damaged ({array.dtype} of shape {list(array.shape)}); {_VERIFY}")
        return array

    def bag(self, index: int) -> Bag:
        """The proposals of the image at `index`."""
        shard = int(np.searchsorted(self._first, index, side="right")) - 1
        arrays, row = self._arrays[shard], index - self._first[shard]
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
        """Summarise the content of the store: counts, dimensions, size on disk, settings."""
        proposals = sum(shard.proposals for shard in self.manifest.shards)
        sample = self._arrays[0] if self._arrays else {}
        size = sum(file.stat().st_size for shard in self.manifest.shards for file in (self.path / shard.name).iterdir())
        return {
            "images": len(self),
            "classes": len(self.dataset.classes),
            "proposals": proposals,
            "proposals per image": round(proposals / max(len(self), 1), 1),
            "transfer d": int(sample["transfer"].shape[1]) if sample else 0,
            "class d": int(sample["class"].shape[1]) if sample else 0,
            "shards": len(self.manifest.shards),
            "MB": round(size / 1e6, 1),
            "unreadable images": len(self.unreadable),
            "settings": self.plan.settings,
        }

    def verify(self) -> list[str]:
        """Check every file against its hash; return one line for each that is missing or has changed."""
        problems = []
        key = store_key(self.plan.model_dump(mode="json", exclude={"key"}))
        if not key == self.plan.key == self.manifest.key:
            problems.append(f"{self.path / PLAN}: has changed: its key does not fit its content")
        for shard in self.manifest.shards:
            folder = self.path / shard.name
            try:
                facts = read_model(folder / FACTS, ShardFacts).model_dump()
            except InputError:
                facts = None
            if facts != shard.model_dump(exclude={"name"}):
                problems.append(f"{folder / FACTS}: differs from {MANIFEST}")
            problems += damaged_files(folder, {f"{name}.npy": expected for name, expected in shard.files.items()})
        return problems


def _name(number: int) -> str:
    return f"shard-{number:05d}"
