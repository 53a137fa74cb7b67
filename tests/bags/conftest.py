"""A small proposer and small scenes, trained once for all tests of bags."""

from pathlib import Path

import pytest
import torch

from helpers import TINY
from pairloc.bags.proposer import Proposer, train
from pairloc.config import SceneSettings
from pairloc.data.reading import read_annotated
from pairloc.data.scenes import write_scenes


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, SceneSettings(source_images=20, target_images=10, size=64))
    return folder


@pytest.fixture(scope="session")
def proposer(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("proposer")
    trained = train(*read_annotated(scenes / "source.json"), TINY, out)
    assert isinstance(trained, Proposer)
    return out
