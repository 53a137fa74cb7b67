"""Pair scores of the bags of one class, computed on demand for `ClassProblem`.

The relation network projects each proposal once; the score of a pair is then a sum of gates over the dimensions. Three
backends compute it: `eager` is the readable reference, `compiled` runs it through torch.compile, `triton` is a CUDA
kernel. Cosines are matrix products and use none of them.
"""

import os
import shutil
from typing import Literal

import torch
from torch import Tensor

from pairloc.scores.pair_function import Backend, PairFunction

_CPU_MEMORY = 8 << 20  # fastest of 1 to 256 MiB: larger chunks leave the cache, smaller ones are mostly overhead
BACKENDS = ("auto", "eager", "compiled", "triton")


class PairScorer:
    """Pair scores of one class on demand, from a pair function and the features of the class's bags.

    Parameters
    ----------
    relation : the pair function, such as `RelationScores` or `CosineScores`
    features : (M, B, d), padded where bags have fewer proposals; scores of padding are finite but meaningless
    label : index of the class, for a pair function with one score per class
    backend : "eager", "compiled", "triton", or "auto"
    memory : limit on the bytes of intermediate values; by default 8 MiB (the cache) on a CPU and 1 GiB on a GPU

    Raises
    ------
    ValueError : the features do not fit the pair function, or the backend cannot run here

    Examples
    --------
    >>> scorer = PairScorer(RelationScores(4), torch.randn(6, 10, 4))
    >>> scorer.block(torch.tensor([0, 1]), torch.tensor([2, 3])).shape  # all proposals of bags 0 and 2, and of 1 and 3
    torch.Size([2, 10, 10])
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
            raise ValueError(f"features have shape {tuple(features.shape)}, not (bags, proposals, d), each at least 1")
        if features.shape[2] != relation.d:
            raise ValueError(f"features have d={features.shape[2]}, but the pair function needs d={relation.d}")
        if not 0 <= label < relation.score.out_features:
            raise ValueError(
                f"label is {label}, but the pair function has {relation.score.out_features} classes, numbered from 0"
            )
        if relation.score.weight.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"the pair function has {relation.score.weight.dtype} weights; convert it to float32")
        self.backend = resolve_backend(backend, features.device)
        if memory is None:
            memory = _CPU_MEMORY if features.device.type == "cpu" else 1 << 30
        self._kernel = relation.kernel(features.to(relation.score.weight.dtype), label, self.backend, memory)

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """score(e, e') + score(e', e) of all proposals of bags `left` (n,) and `right` (n,) -> (n, B, B)."""
        return self._kernel.block(left, right)

    def table(self, left: Tensor, right: Tensor) -> Tensor:
        """The same for each of the bags `left` (n,) with each of the bags `right` (m,) -> (n, B, m B)."""
        return self._kernel.table(left, right)

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of score(e, e') + score(e', e) over chosen proposals e', for all proposals e of `bags` (n,).

        The chosen proposals are `chosen` (m,) of bags `chosen_bags` (m,). Weights (m,) give one sum, (n, B); weights
        (m, g) give g sums, (g, n, B). A bag is never compared with itself.
        """
        return self._kernel.against(bags, chosen_bags, chosen, weights)


def resolve_backend(backend: Backend | Literal["auto"], device: torch.device) -> Backend:
    """Turn "auto" into a backend: `triton` on CUDA, `eager` on a CPU, where compiling only pays off in long runs.

    Raises ValueError if the backend is unknown or cannot run on this machine.
    """
    if backend not in BACKENDS:
        raise ValueError(f"there is no backend {backend!r}; known are {', '.join(BACKENDS)}")
    if backend == "auto":
        return "triton" if device.type == "cuda" else "eager"
    if backend == "triton" and device.type != "cuda" and os.environ.get("TRITON_INTERPRET", "0") != "1":
        raise ValueError("backend 'triton' needs CUDA; use 'eager' or 'compiled'")
    if backend == "compiled" and device.type == "cpu" and shutil.which("c++") is None and shutil.which("g++") is None:
        raise ValueError("backend 'compiled' needs a C++ compiler on a CPU; use 'eager'")
    return backend
