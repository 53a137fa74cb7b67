"""The bag store: memory-mapped shards that any machine can map, written so that a killed run goes on where it stopped.

    STORE/plan.json        what is to be in it: settings, images, tags; its key is the hash of all that
    STORE/shard-00000/     boxes, objectness, transfer, class, offsets, sizes (.npy) and shard.json with their hashes
    STORE/manifest.json    written last: the shards and their hashes

A shard is written under another name and renamed when it is whole, so an interrupted one is never read.
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
from pairloc.io import MANIFEST, REMEDY, damaged, ledger, read_model, reason, refuse_other_work, write_array, write_json
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
    size: tuple[int, int]  # (width, height) of the image as shown; (0, 0) where it could not be read


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

    images: tuple[_Count, _Count]  # the first, and the one after the last
    proposals: _Count
    files: dict[str, str]  # hash of every array
    unreadable: tuple[str, ...]

    @model_validator(mode="after")
    def _has_all_arrays(self) -> "ShardFacts":
        if self.files.keys() != _DTYPES.keys():
            raise ValueError(f"files are not {', '.join(_DTYPES)}")
        return self


class NamedShard(ShardFacts):
    """A shard as the manifest lists it."""

    name: str = Field(pattern=r"^shard-[0-9]{5,9}$")


class Manifest(_File):
    """The content of manifest.json."""

    made_by: str
    key: str
    shards: tuple[NamedShard, ...]


def store_key(content: object) -> str:
    """The hash of settings and inputs."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class StoreWriter:
    """Writes the shards of a store; one process at a time."""

    def __init__(self, path: Path, dataset: Dataset, settings: Mapping[str, Any], *, shard: int) -> None:
        self.path = path
        images = [
            {"id": image.id, "file": image.file, "tags": list(tags)}
            for image, tags in zip(dataset.images, dataset.tags, strict=True)
        ]
        plan = {"settings": dict(settings), "shard": shard, "classes": list(dataset.classes), "images": images}
        self.key = store_key(plan)
        self.ranges = [(a, min(a + shard, len(images))) for a in range(0, len(images), shard)]
        self._held = ExitStack()
        try:
            self._claim(plan)
        except BaseException:
            self.close()
            raise

    def _claim(self, plan: dict[str, Any]) -> None:
        """Take the store for this process, or refuse: another writer, or a store of something else."""
        refuse_other_work(self.path, lambda folder: (folder / PLAN).is_file())
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written to ({reason(error)})") from error
        refusal = f"{self.path}: another process is writing this store; wait for it, or stop it"
        self._held.enter_context(locked(self.path / ".lock", refusal))
        known = self.path / PLAN
        if not known.is_file():
            write_json(known, plan | {"key": self.key})
        elif read_model(known, Plan).key != self.key:
            raise InputError(f"{self.path}: is a store of other images, settings or proposer; {REMEDY}")
        for leftover in self.path.glob(".shard-*.partial*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def close(self) -> None:
        """Let go of the store."""
        self._held.close()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def missing(self) -> list[int]:
        """The shards that are not there yet."""
        return [number for number in range(len(self.ranges)) if not (self.path / _name(number)).is_dir()]

    def write(self, number: int, bags: Sequence[Bag], unreadable: Sequence[str] = ()) -> None:
        """Write a shard whole."""
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
            hashes = ledger(partial, [f"{name}.npy" for name in columns])
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
        """Write the manifest, which makes a store of the shards."""
        if self.missing():
            raise ValueError(f"{self.path}: {len(self.missing())} shards are missing")
        names = [_name(number) for number in range(len(self.ranges))]
        shards = [read_model(self.path / name / FACTS, ShardFacts).model_dump() | {"name": name} for name in names]
        write_json(self.path / MANIFEST, {"made_by": "pairloc bags", "key": self.key, "shards": shards})


class BagStore:
    """A finished store, mapped: reading the bags of a class touches their pages alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / PLAN).is_file():
            raise InputError(f"{path}: is not a bag store: it has no {PLAN}")
        if not (path / MANIFEST).is_file():
            raise InputError(f"{path}: is not finished; run the same 'pairloc bags extract' again to go on")
        self.plan, self.manifest = read_model(path / PLAN, Plan), read_model(path / MANIFEST, Manifest)
        images = tuple(Image(image.id, image.file, None) for image in self.plan.images)
        self.dataset = Dataset(images, self.plan.classes, tuple(image.tags for image in self.plan.images))
        self._first = [shard.images[0] for shard in self.manifest.shards]
        edges = [0, *(shard.images[1] for shard in self.manifest.shards)]
        if self._first != edges[:-1] or edges[-1] != len(images) or any(a >= b for a, b in pairwise(edges)):
            raise InputError(f"{path / MANIFEST}: its shards are not the {len(images)} images of {PLAN} in order")

    def __reduce__(self) -> tuple[type["BagStore"], tuple[Path]]:
        """Another process opens the store itself: what is mapped does not travel."""
        return BagStore, (self.path,)

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def unreadable(self) -> list[str]:
        """What was said of images that could not be read."""
        return [line for shard in self.manifest.shards for line in shard.unreadable]

    @cached_property
    def _arrays(self) -> list[dict[str, npt.NDArray[Any]]]:
        return [{name: self._map(shard, name) for name in _DTYPES} for shard in self.manifest.shards]

    def _map(self, shard: NamedShard, name: str) -> npt.NDArray[Any]:
        """An array of a shard; one that is not of the shape and type the shard says is an InputError."""
        file = self.path / shard.name / f"{name}.npy"
        try:
            array: npt.NDArray[Any] = np.load(file, mmap_mode="r" if file.stat().st_size > 1 << 16 else None)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{file}: is damaged ({reason(error)}); {_VERIFY}") from error
        n = shard.images[1] - shard.images[0]
        shape = {"offsets": (n + 1,), "sizes": (n, 2), "boxes": (shard.proposals, 4)}.get(name, (shard.proposals,))
        dimensions = 2 if name in ("boxes", "transfer", "class", "sizes") else 1
        whole = array.dtype == _DTYPES[name] and array.ndim == dimensions and array.shape[: len(shape)] == shape
        if whole and name == "offsets":
            whole = array[0] == 0 and array[-1] == shard.proposals and bool((np.diff(array) >= 0).all())
        if not whole:
            raise InputError(f"{file}: is damaged ({array.dtype} of shape {list(array.shape)}); {_VERIFY}")
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
        """Every file whose content is not what was written, and every one that is gone."""
        bad = []
        key = store_key(self.plan.model_dump(mode="json", exclude={"key"}))
        if not key == self.plan.key == self.manifest.key:
            bad.append(f"{self.path / PLAN}: does not have the key it was written with")
        for shard in self.manifest.shards:
            folder = self.path / shard.name
            try:
                own = read_model(folder / FACTS, ShardFacts).model_dump()
            except InputError:
                own = None
            if own != shard.model_dump(exclude={"name"}):
                bad.append(f"{folder / FACTS}: is not what the manifest says")
            bad += damaged(folder, {f"{name}.npy": expected for name, expected in shard.files.items()})
        return bad


def _name(number: int) -> str:
    return f"shard-{number:05d}"
