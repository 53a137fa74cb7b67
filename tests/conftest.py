"""Environment variables that must be set before anything is imported, and fixtures shared by all tests.

CI has no GPU, so Triton kernels run in Triton's interpreter. Tests run in parallel, so each process uses one thread. A
small proposer and small scenes are created once for all tests.
"""

import os
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from pairloc.curation.scenes import write_scenes
    from pairloc.settings import SceneSettings

    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, SceneSettings(source_images=20, target_images=10, size=64))
    return folder


@pytest.fixture(scope="session")
def proposer(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from helpers import TINY
    from pairloc.detector.model import Proposer
    from pairloc.detector.training import train
    from pairloc.formats.reading import read_annotated

    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("proposer")
    trained = train(*read_annotated(scenes / "source.json"), TINY, out)
    assert isinstance(trained, Proposer)
    return out
