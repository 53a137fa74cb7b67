import numpy as np
import pytest

from pairloc.datasets.dataset import Dataset, Image
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.evaluation.causes import CAUSES, breakdown, causes
from pairloc.evaluation.corloc import corloc, localized

DATASET = Dataset((Image(1, "a.jpg", (100, 100)),), ("cat", "dog"), ((0, 1),))
CAT, CAT2, DOG = [10.0, 10, 40, 40], [50.0, 10, 80, 40], [10.0, 60, 40, 90]


def truth() -> GroundTruth:
    return GroundTruth(
        np.zeros(3, dtype=np.int64), np.array([0, 0, 1]), np.array([CAT, CAT2, DOG]), np.zeros(3, dtype=bool)
    )


@pytest.mark.parametrize(
    ("box", "cause"),
    [
        ([11, 10, 40, 40], "right"),
        ([12, 12, 22, 22], "part"),
        ([0, 0, 45, 50], "too large"),
        ([8, 8, 82, 42], "group"),
        ([25, 10, 55, 40], "shifted"),
        ([11, 60, 40, 90], "another class"),
        ([70, 70, 95, 95], "elsewhere"),
        (None, "no box"),
    ],
)
def test_every_cause(box: list[float] | None, cause: str) -> None:
    rows = [] if box is None else [box]
    found = ScoredBoxes(
        np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64),
        np.array(rows, dtype=np.float64).reshape(-1, 4), np.ones(len(rows)),
    )  # fmt: skip
    result = localized(DATASET, found, truth())
    names = causes(DATASET, found, truth(), result, 0.5)
    assert names == [cause, "no box"]
    fractions = breakdown(names, result)
    assert sum(fractions.values()) == pytest.approx(1)
    assert fractions["right"] == pytest.approx(corloc(result, 0.5, draws=2).mean)
    assert set(fractions) == set(CAUSES)
