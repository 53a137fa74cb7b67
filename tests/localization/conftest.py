"""A planted target with transfer scores learned from it, created once for these tests."""

import numpy as np
import pytest

from helpers import planted_scores, planted_target
from pairloc.localization.functions import TransferScores
from pairloc.localization.target import Target


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, np.ndarray, TransferScores]:
    target, shown = planted_target(tmp_path_factory.mktemp("planted") / "store", bags=45, noise=0.6)
    return target, shown, planted_scores(target, shown)
