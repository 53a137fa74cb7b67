"""A tiny run, created once for all tests of runs; tests that change it copy it first (`calling.copied`)."""

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
def finished_run(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run, finished."""
    import torch

    from pairloc.presets import read_config
    from pairloc.runs.run import Run

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run") / "finished"
    Run(folder, read_config(config), log=lambda line: None).run()
    return folder


@pytest.fixture(scope="session")
def localized(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of `localize` with the weights of the tiny run."""
    from pairloc.runs.localize import localize, localize_settings

    scenes, out = finished_run / "data" / "scenes", tmp_path_factory.mktemp("localized") / "out"
    settings = localize_settings(scenes / "images", scenes / "target_tags.csv", weights=str(finished_run))
    localize(settings, out, "cpu", lambda line: None)
    return out
