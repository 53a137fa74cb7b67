"""The readers of other programs accept our exports; they run in a separate environment."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from helpers import sample, write_images
from pairloc.formats import write

ROOT = Path(__file__).parents[2]


@pytest.mark.receivers
@pytest.mark.parametrize("program", ["datumaro-voc", "datumaro-yolo", "datumaro-cvat", "label-studio"])
def test_the_receiving_program_reads_our_export(tmp_path: Path, program: str) -> None:
    dataset, boxes = sample()
    format = program.removeprefix("datumaro-")
    out = tmp_path / "out"
    out.mkdir()
    write(format, out, dataset, boxes, write_images(tmp_path / "image_files", dataset))
    python = ROOT / ".venv-receivers" / "bin" / "python"
    result = subprocess.run(
        [python, Path(__file__).with_name("receive.py"), program, out], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)
    assert [row[:2] for row in rows] == [["a", "cat"], ["a", "hot dog"], ["b c", "cat"]]
    expected = [[0, 0, 40, 30], [1, 2, 10, 10], [10, 20, 40, 40]]
    # datumaro does not convert the 1-based inclusive corners of VOC.
    np.testing.assert_allclose([row[2] for row in rows], expected, atol=1.001 if format == "voc" else 0.01)
