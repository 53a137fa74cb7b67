"""Folds for multi-folding: re-train on k - 1 folds, re-localize the held-out one."""

from collections.abc import Sequence

import numpy as np

from pairloc.boxes import Ints


def folds(count: int, positives: Sequence[Ints], k: int, generator: np.random.Generator) -> Ints:
    """Assign each of `count` images to a fold 0 ... k-1, balanced by class -> (count,).

    `positives` lists the image indices of every class. Classes are distributed one after the other, the rarest first,
    so an image with several tags counts for its rarest class. Images without a tag come last.
    """
    fold = np.full(count, -1)
    for label in sorted(range(len(positives)), key=lambda c: (len(positives[c]), c)):
        unassigned = [image for image in positives[label].tolist() if fold[image] < 0]
        fold[generator.permutation(unassigned).astype(int)] = (np.arange(len(unassigned)) + generator.integers(k)) % k
    rest = np.flatnonzero(fold < 0)
    fold[generator.permutation(rest)] = np.arange(len(rest)) % k
    return fold
