"""Bags as padded tensors, for training and re-localization."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pairloc.bags.geometry import GEOMETRY, geometry
from pairloc.bags.reduction import Reduction
from pairloc.bags.store import Bag, BagStore
from pairloc.boxes import iou
from pairloc.errors import InputError
from pairloc.settings import FeatureSettings

_FIT_BAGS = 512  # bags that a reduction is fitted to, at most


class Bags:
    """N bags of a store, all or those at `indices`, padded to the size B of the largest bag.

    Boxes (N, B, 4), objectness (N, B) and the mask `valid` (N, B) are always on the device. Features, reduced to d
    dimensions, are cached on the device if they fit into `memory` bytes; otherwise every call reads them from the
    store. The reduction is fitted to these bags unless one is given.
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
        self.sizes = [bag.size for bag in bags]  # width and height of every image; zeros if it could not be read
        sizes = torch.tensor(self.sizes, dtype=torch.float32).reshape(-1, 2)
        self.area = _area(boxes, sizes).to(self.device)  # (N, B) fraction of the image that a proposal covers
        self._geometry = _geometry(boxes, sizes, objectness, valid).to(self.device) if features.geometry else None
        self.reduction = (reduction or self._fit(features.dimensions, seed)).to(self.device)
        self._cached: Tensor | None = None
        if self.count * self.size * self.d * _dtype(self.device).itemsize <= memory:
            cached = torch.empty(self.count, self.size, self.d, device=self.device, dtype=_dtype(self.device))
            for start in range(0, self.count, 256):
                rows = torch.arange(start, min(start + 256, self.count))
                cached[start : start + 256] = self._read(rows)
            self._cached = cached

    @classmethod
    def of_tensors(cls, features: Tensor, boxes: Tensor, valid: Tensor, objectness: Tensor) -> "Bags":
        """Make bags without a store: (N, B, d), (N, B, 4), (N, B) and (N, B), all on one device."""
        bags = cls.__new__(cls)
        bags.kind, bags.device, bags.indices = "transfer", features.device, list(range(len(features)))
        bags.count, bags.size = features.shape[:2]
        bags.boxes, bags.valid, bags.objectness, bags._cached = boxes, valid, objectness, features
        bags.sizes = [(0, 0)] * bags.count
        bags.area = torch.zeros_like(objectness)  # unknown without images
        d = features.shape[2]
        bags._geometry = None
        bags.reduction = Reduction(torch.zeros(d, device=bags.device), torch.eye(d, device=bags.device))
        return bags

    @property
    def d(self) -> int:
        """Number of dimensions of a feature, geometry included."""
        return self.reduction.d + (0 if self._geometry is None else GEOMETRY)

    def features(self, bags: Tensor) -> Tensor:
        """Features of all proposals of the bags (n,) -> (n, B, d); zeros in the padding."""
        if self._cached is not None:
            return self._cached[bags.to(self.device)].float()
        return self._read(bags)

    def chosen(self, bags: Tensor, proposals: Tensor) -> Tensor:
        """Features of the proposals (n, m) of the bags (n,) -> (n, m, d)."""
        if self._cached is None:
            features = self._read(bags)
            return features.gather(1, proposals.to(self.device)[..., None].expand(-1, -1, self.d))
        return self._cached[bags.to(self.device)[:, None], proposals.to(self.device)].float()

    def box_head_features(self, bags: Tensor) -> Tensor:
        """Unreduced features (n, B, d) of the proposer's box head, of the bags (n,)."""
        raw = [torch.from_numpy(np.array(self.store.bag(self.indices[row]).transfer)) for row in bags.tolist()]
        features = torch.zeros(len(raw), self.size, max((part.shape[1] for part in raw), default=0), device=self.device)
        for row, part in zip(features, raw, strict=True):
            row[: len(part)] = part
        return features

    def frame_overlap(self, bags: Tensor) -> Tensor:
        """Return the IoU (n, B) of the proposals of some bags (n,) with the frame of their image; -inf for padding.

        If the size of an image is unknown, its frame is the smallest one that contains all of its proposals.
        """
        rows = bags.to(self.device)
        boxes, valid = self.boxes[rows], self.valid[rows]
        sizes = boxes.new_tensor([self.sizes[bag] for bag in bags.tolist()]).reshape(-1, 2)  # (n, 2)
        extent = (boxes[..., 2:] * valid[..., None]).amax(dim=1) if len(bags) else sizes
        corner = torch.where(sizes > 0, sizes, extent)
        frames = torch.cat([torch.zeros_like(corner), corner], dim=1)  # (n, 4)
        return iou(frames[:, None], boxes)[:, 0].masked_fill(~valid, -torch.inf)

    def _raw(self, bag: Bag) -> Tensor:
        parts = {"transfer": [bag.transfer], "class": [bag.class_features], "both": [bag.transfer, bag.class_features]}
        return torch.from_numpy(np.concatenate(parts[self.kind], axis=1))

    def _read(self, bags: Tensor) -> Tensor:
        raw = [self._raw(self.store.bag(self.indices[row])) for row in bags.tolist()]
        out = torch.zeros(len(raw), self.size, self.d, device=self.device)
        if raw:
            if raw[0].shape[1] != len(self.reduction.mean):
                raise InputError(
                    f"{self.store.path}: its features ({self.kind}) have {raw[0].shape[1]} dimensions, but the scores "
                    f"were learned from {len(self.reduction.mean)}; extract with the same class_features"
                )
            flat = self.reduction(torch.cat(raw).to(self.device))
            for row, part in zip(out, torch.split(flat, [len(entry) for entry in raw]), strict=True):
                row[: len(part), : self.reduction.d] = part
        if self._geometry is not None:
            out[..., self.reduction.d :] = self._geometry[bags.to(self.device)]
        return out

    def _fit(self, dimensions: int, seed: int) -> Reduction:
        subset = np.random.default_rng(seed).permutation(self.count)[:_FIT_BAGS]
        rows = [self._raw(self.store.bag(self.indices[row])) for row in sorted(subset.tolist())]
        values = torch.cat(rows)
        if not values.shape[1]:
            raise InputError(f"the bags have no features of kind {self.kind!r}; extract them, or use another kind")
        return Reduction.fit(values, dimensions)


def _area(boxes: Tensor, sizes: Tensor) -> Tensor:
    has_size = (sizes > 0).all(dim=1)[:, None]  # imported bags may lack the sizes of their images
    return has_size * (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1) / sizes.clamp(min=1).prod(dim=1)[:, None]


def _geometry(boxes: Tensor, sizes: Tensor, objectness: Tensor, valid: Tensor) -> Tensor:
    return geometry(boxes, sizes, objectness) * valid[..., None]


def _dtype(device: torch.device) -> torch.dtype:
    """Data type of cached features: half precision saves GPU memory, but is slow on a CPU."""
    return torch.float16 if device.type == "cuda" else torch.float32
