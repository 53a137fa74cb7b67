"""Install a wheel into a fresh environment, and find boxes there with the weights inside the wheel.

    .venv/bin/python benchmarks/try_wheel.py dist/pairloc-0.1.0-py3-none-any.whl

The dependencies are those of the running environment, so nothing is downloaded.
"""

import json
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path


def main() -> None:
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "fresh", with_pip=False)
        python = folder / "fresh" / "bin" / "python"
        (packages,) = (folder / "fresh" / "lib").glob("python*/site-packages")
        pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install", "--no-deps", "--no-index"]
        subprocess.run([*pip, str(wheel)], check=True)
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

        def run(*arguments: str) -> str:
            command = [str(python), "-m", *arguments]
            return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

        where = "import pairloc; print(pairloc.__file__)"
        found = subprocess.run(
            [str(python), "-c", where], cwd=folder, check=True, capture_output=True, text=True
        ).stdout
        assert Path(found.strip()).is_relative_to(packages), found
        print(run("pairloc", "--version"), end="")
        print(run("pairloc", "weights", "verify"), end="")
        run("pairloc", "scenes", "--out", "scenes", "--source-images", "5", "--target-images", "20")
        tags = "scenes/target_tags.csv"
        print(run("pairloc", "localize", "scenes/images", "--tags", tags, "--out", "found", "--device", "cpu"), end="")
        boxes = json.loads((folder / "found" / "boxes.json").read_text())
        assert len(boxes["annotations"]) >= 20
        print(f"{wheel.name}: {len(boxes['annotations'])} boxes")


if __name__ == "__main__":
    main()
