"""Pair scores of the bags of a class on demand: what a `ClassProblem` takes.

Each proposal is projected once; then a block of pairs is a sum over dimensions of gates of sums. Three backends do it:
`eager` is the readable reference, `compiled` the same through torch.compile, `triton` a kernel for CUDA. Cosines are
matrix products and need none of them.
"""

import os
import shutil
from typing import Literal

import torch
from torch import Tensor

from pairloc.scores.pair_function import Backend, PairFunction

_CPU_MEMORY = 8 << 20  # of 1 to 256 MiB the fastest; more leaves the cache, less is all overhead
BACKENDS = ("auto", "eager", "compiled", "triton")


class PairScorer:
    """The pair scores of one class.

    `features` is (M, B, d), padded where bags have fewer proposals; scores of padding are finite and mean nothing.
    `memory` bounds the bytes of what is held per pair and dimension at a time (the kernel holds nothing); unless told
    otherwise it is what stays in a CPU's cache, or 1 GiB of a GPU's memory.
    """

    def __init__(
        self,
        relation: PairFunction,
        features: Tensor,
        *,
        label: int = 0,
        backend: Backend | Literal["auto"] = "auto",
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
        if memory is None:
            memory = _CPU_MEMORY if features.device.type == "cpu" else 1 << 30
        self._kernel = relation.kernel(features.to(relation.score.weight.dtype), label, self.backend, memory)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`."""
        return self._kernel.block(left, right)

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairKernel`."""
        return self._kernel.against(bags, chosen_bags, chosen, weights)


def choose(backend: Backend | Literal["auto"], device: torch.device) -> Backend:
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
