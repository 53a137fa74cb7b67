"""The paper's COCO experiment: settings chosen on playing classes, then the methods on the target with three seeds.

    .venv/bin/python benchmarks/paper_protocol.py DATA OUT

DATA holds `coco17` and `play`, as `pairloc split` writes them, the images they name, and `resnet50.safetensors`
(benchmarks/resnet50_weights.py). Two runs with the preset `paper` train a proposer and transfer scores each, side by
side: OUT/play on 46 classes, OUT/coco17 on 63. On the playing classes alpha is chosen by the warm-up, lambda2 by
`unary` and lambda1 by `full`; the target's truth is used only in the last step. Needs one GPU of 80 GB or more.
Everything is resumable: finished runs are skipped, and OUT/*.txt with results are kept.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

GRID = Path(__file__).with_name("paper_grid.py")
ALPHAS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
LAMBDAS = (0.25, 0.5, 0.75)
CONFIG = """preset = "paper"
methods = ["warm-up-unary"]
memory = 60.0
[data]
source = "{data}/{split}/source.json"
source_images = "{data}"
target = "{data}/{split}/target_tags.csv"
target_images = "{data}"
truth = "{data}/{split}/target_truth.json"
[proposer]
backbone = "resnet50-v1"
backbone_weights = "{data}/resnet50.safetensors"
image_size = 320
crop = 0.6
workers = 7
[extract]
workers = 6
"""


def start(out: Path, name: str, *command: object) -> "subprocess.Popen[bytes]":
    """Start a process whose output goes to OUT/NAME.txt."""
    with (out / f"{name}.txt").open("wb") as log:
        return subprocess.Popen([sys.executable, *map(str, command)], stdout=log, stderr=subprocess.STDOUT)


def rows(file: Path) -> list[dict[str, object]]:
    """Read the results that paper_grid.py printed."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return [json.loads(line) for line in lines if line.startswith("{")]


def grid(out: Path, key: str, values: Sequence[float], method: str, *changes: str) -> float:
    """Try values of a setting on the playing classes side by side; return the one with the highest CorLoc."""
    names = {value: f"{key.rsplit('.', 1)[-1]}-{value}" for value in values}
    processes = [
        start(out, name, GRID, out / "play", "--method", method, "--set", f"{key}={value}", *changes)
        for value, name in names.items()
        if not rows(out / f"{name}.txt")
    ]
    for process in processes:
        process.wait()
    merit = {}
    for value, name in names.items():
        for row in rows(out / f"{name}.txt"):
            corloc = row["all"]
            assert isinstance(corloc, list)
            merit[value] = sum(corloc)
            print(f"{key} = {value}, {method}: {corloc}", flush=True)
    return max(merit, key=lambda value: merit[value])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE", help="for both runs")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    options = parser.parse_args()
    out, data = options.out, options.data.resolve()
    out.mkdir(parents=True, exist_ok=True)
    trainings = []
    for split in ("play", "coco17"):
        (out / f"{split}.toml").write_text(CONFIG.format(data=data, split=split))
        changes = [part for change in options.changes for part in ("--set", change)]
        command = ("-m", "pairloc", "run", out / f"{split}.toml", "--out", out / split, *changes)
        trainings.append(start(out, f"run-{split}", *command))
    if any(process.wait() for process in trainings):
        raise SystemExit(f"a run failed; see {out / 'run-play.txt'} and {out / 'run-coco17.txt'}")
    energy = "localization.energy"
    alpha = grid(out, f"{energy}.alpha", ALPHAS, "warm-up")
    lambda2 = grid(out, f"{energy}.lambda2", LAMBDAS, "unary", "localization.rounds=2")
    chosen = (f"{energy}.alpha={alpha}", f"{energy}.lambda2={lambda2}")
    lambda1 = grid(out, f"{energy}.lambda1", LAMBDAS, "full", "localization.rounds=1", *chosen)
    print(f"chosen: alpha {alpha}, lambda1 {lambda1}, lambda2 {lambda2}", flush=True)
    methods = ("warm-up-unary", "warm-up", "unary", "full")
    final = [
        start(
            out, f"target-{seed}", GRID, out / "coco17", "--method", *methods, "--seed", seed, "--out", out / "boxes",
            "--set", *chosen, f"{energy}.lambda1={lambda1}",
        )
        for seed in options.seeds
    ]  # fmt: skip
    for process in final:
        process.wait()
    for seed in options.seeds:
        for row in rows(out / f"target-{seed}.txt"):
            parts = {name: row.get(name) for name in ("all", "clean", "cluttered", "seconds")}
            print(f"seed {seed}, {row['method']}: {parts}", flush=True)


if __name__ == "__main__":
    main()
