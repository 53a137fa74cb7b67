"""Bags as padded tensors: what the training loops and re-localization work on."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.geometry import GEOMETRY, geometry
from pairloc.bags.reduction import Reduction
from pairloc.bags.store import Bag, BagStore
from pairloc.errors import InputError
from pairloc.settings import FeatureSettings

_FITTED = 512  # bags a reduction is fitted to


class Bags:
    """The N bags of a store, or some of them, with the features one side uses; B is the largest bag's size.

    Boxes are always held. Features are held on the device, reduced, if they fit into `memory` bytes; else they are
    read from the store, which is mapped, whenever they are asked for.
    """

    def __init__(
        self,
        store: BagStore,
        features: FeatureSettings,
        *,
        reduction: Reduction | None = None,
        indices: Sequence[int] | None = None,
        device: str | torch.device = "cpu",
        memory: int = 8 << 30,
        seed: int = 0,
    ) -> None:
        self.store, self.kind, self.device = store, features.kind, torch.device(device)
        self.indices = list(range(len(store))) if indices is None else list(indices)
        bags = [store.bag(index) for index in self.indices]
        counts = torch.tensor([len(bag.boxes) for bag in bags], dtype=torch.int64)
        self.count, self.size = len(bags), max(1, int(counts.max()) if bags else 1)  # N, B
        valid = torch.arange(self.size) < counts[:, None]
        boxes, objectness = torch.zeros(self.count, self.size, 4), torch.zeros(self.count, self.size)
        for row, bag in enumerate(bags):
            boxes[row, : len(bag.boxes)] = torch.from_numpy(np.array(bag.boxes))
            objectness[row, : len(bag.boxes)] = torch.from_numpy(np.array(bag.objectness))
        self.boxes, self.objectness, self.valid = (t.to(self.device) for t in (boxes, objectness, valid))
        self.sizes = [bag.size for bag in bags]  # width and height of every image; zeros where it could not be read
        sizes = torch.tensor(self.sizes, dtype=torch.float32).reshape(-1, 2)
        self.area = _area(boxes, sizes).to(self.device)  # (N, B) part of its image that a proposal covers
        self._geometry = _geometry(boxes, sizes, objectness, valid).to(self.device) if features.geometry else None
        self.reduction = (reduction or self._fit(features.dimensions, seed)).to(self.device)
        self._held: Tensor | None = None
        if self.count * self.size * self.d * _dtype(self.device).itemsize <= memory:
            held = torch.empty(self.count, self.size, self.d, device=self.device, dtype=_dtype(self.device))
            for start in range(0, self.count, 256):
                rows = torch.arange(start, min(start + 256, self.count))
                held[start : start + 256] = self._read(rows)
            self._held = held

    @classmethod
    def of_tensors(cls, features: Tensor, boxes: Tensor, valid: Tensor, objectness: Tensor) -> "Bags":
        """Bags that are there already: (N, B, d), (N, B, 4), (N, B) and (N, B), all on one device."""
        bags = cls.__new__(cls)
        bags.kind, bags.device, bags.indices = "transfer", features.device, list(range(len(features)))
        bags.count, bags.size = features.shape[:2]
        bags.boxes, bags.valid, bags.objectness, bags._held = boxes, valid, objectness, features
        bags.sizes = [(0, 0)] * bags.count
        bags.area = torch.zeros_like(objectness)  # there are no images
        d = features.shape[2]
        bags._geometry = None
        bags.reduction = Reduction(torch.zeros(d, device=bags.device), torch.eye(d, device=bags.device))
        return bags

    @property
    def d(self) -> int:
        """Dimensions of a feature."""
        return self.reduction.d + (0 if self._geometry is None else GEOMETRY)

    def features(self, bags: Tensor) -> Tensor:
        """All proposals of some bags (n,) -> (n, B, d); zeros where a bag has fewer."""
        if self._held is not None:
            return self._held[bags.to(self.device)].float()
        return self._read(bags)

    def chosen(self, bags: Tensor, proposals: Tensor) -> Tensor:
        """Some proposals (n, m) of bags (n,) -> (n, m, d)."""
        if self._held is None:
            features = self._read(bags)
            return features.gather(1, proposals.to(self.device)[..., None].expand(-1, -1, self.d))
        return self._held[bags.to(self.device)[:, None], proposals.to(self.device)].float()

    def _raw(self, bag: Bag) -> Tensor:
        parts = {"transfer": [bag.transfer], "class": [bag.class_features], "both": [bag.transfer, bag.class_features]}
        return torch.from_numpy(np.concatenate(parts[self.kind], axis=1))

    def _read(self, bags: Tensor) -> Tensor:
        raw = [self._raw(self.store.bag(self.indices[row])) for row in bags.tolist()]
        out = torch.zeros(len(raw), self.size, self.d, device=self.device)
        if raw:
            if raw[0].shape[1] != len(self.reduction.mean):
                raise InputError(
                    f"{self.store.path}: its {self.kind} features are of {raw[0].shape[1]} dimensions, those that were "
                    f"learned from of {len(self.reduction.mean)}: extract with the same class_features"
                )
            flat = self.reduction(torch.cat(raw).to(self.device))
            for row, part in zip(out, torch.split(flat, [len(entry) for entry in raw]), strict=True):
                row[: len(part), : self.reduction.d] = part
        if self._geometry is not None:
            out[..., self.reduction.d :] = self._geometry[bags.to(self.device)]
        return out

    def _fit(self, dimensions: int, seed: int) -> Reduction:
        some = np.random.default_rng(seed).permutation(self.count)[:_FITTED]
        rows = [self._raw(self.store.bag(self.indices[row])) for row in sorted(some.tolist())]
        return Reduction.fit(torch.cat(rows), dimensions)


def _area(boxes: Tensor, sizes: Tensor) -> Tensor:
    known = (sizes > 0).all(dim=1)[:, None]  # imported bags may not say how large their images are
    return known * (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1) / sizes.clamp(min=1).prod(dim=1)[:, None]


def _geometry(boxes: Tensor, sizes: Tensor, objectness: Tensor, valid: Tensor) -> Tensor:
    return geometry(boxes, sizes, objectness) * valid[..., None]


def _dtype(device: torch.device) -> torch.dtype:
    """What features are held in: a GPU has more bandwidth than room, a CPU is slow with halves."""
    return torch.float16 if device.type == "cuda" else torch.float32
