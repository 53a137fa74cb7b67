"""Folds for multi-folding: re-train on k - 1 of them, re-localize the one held out."""

import numpy as np

from pairloc.boxes import Ints


def folds(count: int, k: int, generator: np.random.Generator) -> Ints:
    """The fold 0 ... k-1 of each of `count` items: random, and of sizes that differ by one at most -> (count,)."""
    if not 1 <= k <= max(count, 1):
        raise ValueError(f"{count} items cannot be cut into {k} folds")
    return generator.permutation(np.arange(count, dtype=np.int64) % k)
