"""Folds for multi-folding: re-train on k - 1 of them, re-localize the one held out."""

from collections.abc import Sequence

import numpy as np

from pairloc.boxes import Ints


def folds(count: int, positives: Sequence[Ints], k: int, generator: np.random.Generator) -> Ints:
    """A fold 0 ... k-1 for each of `count` images: every class is spread over them as evenly as its tags allow.

    `positives` holds the images of each class. They are dealt out class by class, the rarest first; an image with
    several tags goes with its rarest, images without a tag come last -> (count,).
    """
    fold = np.full(count, -1)
    for label in sorted(range(len(positives)), key=lambda c: (len(positives[c]), c)):
        free = [image for image in positives[label].tolist() if fold[image] < 0]
        fold[generator.permutation(free).astype(int)] = (np.arange(len(free)) + generator.integers(k)) % k
    rest = np.flatnonzero(fold < 0)
    fold[generator.permutation(rest)] = np.arange(len(rest)) % k
    return fold
