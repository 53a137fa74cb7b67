"""Significance of the CorLoc difference between two sets of boxes on the same images."""

from dataclasses import dataclass

import numpy as np

from pairloc.errors import InputError
from pairloc.evaluation.corloc import Localized, bootstrap, class_means


@dataclass(frozen=True)
class Difference:
    """CorLoc of the second set of boxes minus that of the first."""

    threshold: float
    mean: float
    interval: tuple[float, float]  # 95%, by paired bootstrap over images
    better: float  # fraction of bootstrap samples in which the second is better


def difference(
    first: Localized, second: Localized, threshold: float = 0.5, *, strict: bool = True, draws: int = 1000
) -> Difference:
    """Compare two results by a paired bootstrap, which draws the same images for both.

    Raises InputError if the results are not of the same images and classes.
    """
    if first.classes != second.classes or not (
        np.array_equal(first.image, second.image) and np.array_equal(first.label, second.label)
    ):
        raise InputError("the two results are not of the same images and classes; evaluate both on one ground truth")
    gain = second.right(threshold, strict=strict) - first.right(threshold, strict=strict)
    samples = bootstrap(first, gain, draws)
    low, high = np.quantile(samples, [0.025, 0.975]).tolist()
    mean = float(np.nanmean(class_means(gain, first.label, len(first.classes))))
    return Difference(threshold, mean, (low, high), float((samples > 0).mean()))
