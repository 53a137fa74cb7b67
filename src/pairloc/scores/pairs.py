"""Pair scores of the bags of a class on demand: what `inference.relocalize` takes.

Each proposal is projected once; then a block of pairs is a sum over dimensions of gates of sums. Three backends do it:
`eager` is the readable reference, `compiled` the same through torch.compile, `triton` a kernel for CUDA. Cosines are
matrix products and need none of them.
"""

import os
import shutil
from typing import Literal, Protocol

import torch
from torch import Tensor

from pairloc.scores.cosine import Cosines, CosineScores, Embedded
from pairloc.scores.eager import Eager
from pairloc.scores.relation import Projected, RelationScores

Backend = Literal["auto", "eager", "compiled", "triton"]
_CPU_MEMORY = 8 << 20  # of 1 to 256 MiB the fastest; more leaves the cache, less is all overhead
BACKENDS = ("auto", "eager", "compiled", "triton")


class Kernel(Protocol):
    """A backend, holding the projections of M bags of B proposals."""

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """Both directions of all pairs of bags `left` (n,) and `right` (n,) -> (n, B, B)."""

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Both directions of all proposals of `bags` (n,) with chosen ones (m,), summed by weight: see `PairScorer`."""


class PairScorer:
    """The pair scores of one class.

    `features` is (M, B, d), padded where bags have fewer proposals; scores of padding are finite and mean nothing.
    `memory` bounds the bytes of what is held per pair and dimension at a time (the kernel holds nothing); unless told
    otherwise it is what stays in a CPU's cache, or 1 GiB of a GPU's memory.
    """

    def __init__(
        self,
        relation: RelationScores | CosineScores,
        features: Tensor,
        *,
        label: int = 0,
        backend: Backend = "auto",
        memory: int | None = None,
    ) -> None:
        if features.ndim != 3 or 0 in features.shape:
            raise ValueError(f"features have shape {tuple(features.shape)}, not (bags, proposals, d)")
        if features.shape[2] != relation.d:
            raise ValueError(f"features are of d={features.shape[2]}, the relation network of d={relation.d}")
        if not 0 <= label < relation.score.out_features:
            raise ValueError(f"there is no class {label}; the relation network has {relation.score.out_features}")
        if relation.score.weight.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the relation network is of {relation.score.weight.dtype}; make it float32 for scoring")
        self.backend = choose(backend, features.device)
        projected = relation.project(features.to(relation.score.weight.dtype), label)
        if memory is None:
            memory = _CPU_MEMORY if features.device.type == "cpu" else 1 << 30
        self._kernel = _kernel(self.backend, projected, memory)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """score(e, e') + score(e', e) of all proposals of bags `left` (n,) and `right` (n,) -> (n, B, B)."""
        return self._kernel.block(left, right)

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """The same of all proposals of `bags` (n,) with proposals `chosen` (m,) of `chosen_bags` (m,), by weight.

        The m scores are summed with `weights` (m,) -> (n, B), or (m, g) -> (g, n, B). A bag is not compared with
        itself.
        """
        return self._kernel.against(bags, chosen_bags, chosen, weights)


def choose(backend: Backend, device: torch.device) -> Literal["eager", "compiled", "triton"]:
    """The backend that is meant: on CUDA the kernel, on a CPU the plain one (compiling pays for long runs only)."""
    if backend not in BACKENDS:
        raise ValueError(f"there is no backend {backend!r}; known are {', '.join(BACKENDS)}")
    if backend == "auto":
        return "triton" if device.type == "cuda" else "eager"
    if backend == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET", "0") != "1":
        raise ValueError("backend 'triton' needs CUDA; use 'eager' or 'compiled'")
    if backend == "compiled" and device.type == "cpu" and shutil.which("c++") is None and shutil.which("g++") is None:
        raise ValueError("backend 'compiled' needs a C++ compiler on a CPU; use 'eager'")
    return backend


def _kernel(backend: str, projected: Projected | Embedded, memory: int) -> Kernel:
    if isinstance(projected, Embedded):
        return Cosines(projected, memory)
    if backend == "triton":
        from pairloc.scores.pairs_triton import TritonPairs

        return TritonPairs(projected)
    return Eager(projected, memory, compiled=backend == "compiled")
