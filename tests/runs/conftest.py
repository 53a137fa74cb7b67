"""A tiny run, made once for all tests of runs; who changes something copies it first (`calling.copied`)."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The settings of the tiny run."""
    from helpers import TINY_RUN

    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY_RUN)
    return path


@pytest.fixture(scope="session")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run, finished."""
    import torch

    from pairloc.presets import read_config
    from pairloc.runs.run import Run

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run") / "whole"
    Run(folder, read_config(config), log=lambda line: None).run()
    return folder


@pytest.fixture(scope="session")
def located(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `localize` wrote with the weights of the tiny run."""
    from pairloc.runs.localize import localize, localize_settings

    scenes, out = whole / "data" / "scenes", tmp_path_factory.mktemp("located") / "out"
    settings = localize_settings(scenes / "images", scenes / "target_tags.csv", weights=str(whole))
    localize(settings, out, "cpu", lambda line: None)
    return out
