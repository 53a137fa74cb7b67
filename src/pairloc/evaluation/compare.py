"""Two sets of boxes on the same images: is one better, or is it chance?"""

from dataclasses import dataclass

import numpy as np

from pairloc.errors import InputError
from pairloc.evaluation.corloc import Localized, bootstrap, class_means


@dataclass(frozen=True)
class Difference:
    """CorLoc of the second less that of the first."""

    threshold: float
    mean: float
    interval: tuple[float, float]  # 95%, by paired bootstrap over images
    better: float  # share of the draws in which the second is better


def difference(
    first: Localized, second: Localized, threshold: float = 0.5, *, strict: bool = True, draws: int = 1000
) -> Difference:
    """Compare by drawing the same images for both."""
    if first.classes != second.classes or not (
        np.array_equal(first.image, second.image) and np.array_equal(first.label, second.label)
    ):
        raise InputError("the two were not measured on the same images and classes")
    gain = second.right(threshold, strict=strict) - first.right(threshold, strict=strict)
    sampled = bootstrap(first, gain, draws)
    low, high = np.quantile(sampled, [0.025, 0.975]).tolist()
    mean = float(np.nanmean(class_means(gain, first.label, len(first.classes))))
    return Difference(threshold, mean, (low, high), float((sampled > 0).mean()))
