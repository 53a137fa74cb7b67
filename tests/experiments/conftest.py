"""A tiny finished run, created once for these tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run, finished."""
    import torch

    from helpers import TINY_RUN
    from pairloc.presets import read_config
    from pairloc.runs.run import Run

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("experiments")
    (folder / "tiny.toml").write_text(TINY_RUN)
    settings = read_config(folder / "tiny.toml", ['methods=["warm-up-unary"]'])
    Run(folder / "run", settings, log=lambda line: None).run()
    return folder / "run"
