"""The sheets of successes and failures: what is on them, and in which order."""

import numpy as np

from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.report.figures import sheet_cases
from pairloc.report.page import MethodResult

RIGHT, PART, ELSEWHERE = [10.0, 10, 50, 50], [10.0, 10, 20, 20], [60.0, 60, 90, 90]


def method(name: str, *boxes: list[float]) -> MethodResult:
    count = len(boxes)
    return MethodResult(
        name, ScoredBoxes(np.arange(count), np.arange(count) % 2, np.array(boxes), np.linspace(0.2, 0.9, count))
    )


def test_successes_are_right_and_failures_wrong_in_turn_by_cause() -> None:
    """A box that other methods got wrong comes first among the successes; an image without a box is on no sheet."""
    images = tuple(Image(i, f"{i}.png", (100, 100)) for i in range(7))
    dataset = Dataset(images, ("cat", "dog"), tuple((i % 2,) for i in range(7)))
    truth = GroundTruth(np.arange(7), np.arange(7) % 2, np.array([RIGHT] * 7), np.zeros(7, dtype=np.bool_))
    before = method("warm-up", RIGHT, RIGHT, ELSEWHERE, RIGHT, RIGHT, RIGHT)
    last = method("full", RIGHT, RIGHT, RIGHT, ELSEWHERE, ELSEWHERE, PART)
    sheets = sheet_cases(dataset, [before, last], truth)
    assert sheets["successes"] == [((2, 0), ""), ((0, 0), ""), ((1, 1), "")]
    assert sheets["failures"] == [((3, 1), "elsewhere"), ((5, 1), "part"), ((4, 0), "elsewhere")]
