"""The paper's COCO experiment: settings chosen on playing classes, then every method on the target with three seeds.

    .venv/bin/python benchmarks/paper_protocol.py DATA OUT [--only choose target explain]

DATA holds `coco17` and `play`, as `pairloc split` writes them, the images they name, and `resnet50.safetensors`
(benchmarks/resnet50_weights.py). Two runs with the preset `paper` train a proposer and transfer scores each, side by
side: OUT/play on 46 classes, OUT/coco17 on 63. Three parts:

choose   on the playing classes, alpha by the warm-up, lambda2 and the IoU behind foreground by `unary`, lambda1 by
         `full`; without this part the values of the preset are used
target   every method on the target with three seeds, the baselines and the study of initialisations: the only part
         that uses the target's truth
explain  every method on the playing classes with one setting changed at a time, to see what limits a row

Needs one GPU of 80 GB or more. Finished steps are skipped when the command is repeated.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

GRID = Path(__file__).with_name("paper_grid.py")
ALPHAS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
LAMBDAS = (0.25, 0.5, 0.75)
FOREGROUND = (0.5, 0.6, 0.7)
ALL = ("warm-up-unary", "warm-up", "unary", "full")
BASELINES = ("mi-svm", "deselaers", "lsda", "tang")
ENERGY, TRAINING = "localization.energy", "localization.training"
ONE_ROUND = "localization.rounds=1"
PARTS = ("choose", "target", "explain")
SIDE_BY_SIDE = 2  # processes of `explain` that share the GPU
VARIANTS = {  # one change each, to see what limits a row
    "as-chosen": (),
    "more-steps": (f"{TRAINING}.steps=6000",),
    "box-head-features": ("localization.features.kind=transfer",),
    "adamw": (f"{TRAINING}.optimizer=adamw", f"{TRAINING}.lr=0.002"),
    "mean-of-pairs": (f"{ENERGY}.alpha_scale=per_bag", f"{ENERGY}.alpha=1.0"),
    "folds": ("localization.folds=4",),
    "transfer-cosine": ("transfer.pairs.kind=cosine",),
    "transfer-adamw": ("transfer.training.optimizer=adamw", "transfer.training.lr=0.002"),
    "transfer-tight": ("transfer.foreground_iou=0.65",),
    "transfer-reduced": ("transfer.features.dimensions=256",),
}
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
[transfer]
images = {images}
"""


class Steps:
    """Processes whose output goes to OUT/NAME.txt; one that ended well leaves OUT/NAME.ok and is not repeated."""

    def __init__(self, out: Path) -> None:
        self.out, self.running = out, dict[str, subprocess.Popen[bytes]]()

    def start(self, name: str, *command: object) -> None:
        """Start a process unless it was finished before."""
        if not (self.out / f"{name}.ok").is_file():
            print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
            with (self.out / f"{name}.txt").open("wb") as log:
                arguments = [sys.executable, *map(str, command)]
                self.running[name] = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT)

    def wait(self, *names: str) -> None:
        """Wait for processes; a failed one is reported and does not stop the others."""
        for name in names:
            process = self.running.pop(name, None)
            if process is not None and process.wait() == 0:
                (self.out / f"{name}.ok").touch()
            elif process is not None:
                print(f"{name} failed; see {self.out / name}.txt", flush=True)

    def wait_for_file(self, file: Path, name: str) -> None:
        """Wait until a process has written a file."""
        while not file.is_file():
            process = self.running.get(name)
            if process is None or process.poll() not in (None, 0):
                raise SystemExit(f"{name} ended without {file}; see {self.out / name}.txt")
            time.sleep(1)

    def rows(self, name: str) -> list[dict[str, list[float]]]:
        """Read the results that paper_grid.py printed."""
        file = self.out / f"{name}.txt"
        lines = file.read_text().splitlines() if file.is_file() else []
        return [json.loads(line) for line in lines if line.startswith("{")]


def start_grid(steps: Steps, key: str, values: Sequence[float], method: str, *changes: str) -> Mapping[float, str]:
    """Start a method on the playing classes with every value of a setting; return the name of each process."""
    names = {value: f"{key.rsplit('.', 1)[-1]}-{value}" for value in values}
    for value, name in names.items():
        steps.start(name, GRID, steps.out / "play", "--method", method, "--set", f"{key}={value}", *changes)
    return names


def best(steps: Steps, names: Mapping[float, str]) -> float:
    """Wait for a grid, print it, and return the value with the highest sum of CorLoc@0.5 and @0.7."""
    steps.wait(*names.values())
    merit = {}
    for value, name in names.items():
        for row in steps.rows(name):
            merit[value] = sum(row["all"])
            print(
                f"{name}, {row['method']}: { ({part: row.get(part) for part in ('all', 'clean', 'cluttered')}) }",
                flush=True,
            )
    return max(merit, key=lambda value: merit[value])


def start_run(steps: Steps, data: Path, split: str, images: int, changes: Sequence[str]) -> None:
    """Start the run that trains the proposer and the transfer scores of a split and extracts its bags."""
    (steps.out / f"{split}.toml").write_text(CONFIG.format(data=data, split=split, images=images))
    run = ("-m", "pairloc", "run", steps.out / f"{split}.toml", "--out", steps.out / split)
    steps.start(f"run-{split}", *run, *(part for change in changes for part in ("--set", change)))


def choose(steps: Steps) -> list[str]:
    """Choose the settings that the paper leaves open, on the playing classes."""
    alphas = start_grid(steps, f"{ENERGY}.alpha", ALPHAS, "warm-up")
    lambdas2 = start_grid(steps, f"{ENERGY}.lambda2", LAMBDAS, "unary", ONE_ROUND)
    overlaps = start_grid(steps, f"{TRAINING}.foreground_iou", FOREGROUND, "unary", ONE_ROUND)
    chosen = {f"{ENERGY}.alpha": best(steps, alphas), f"{ENERGY}.lambda2": best(steps, lambdas2)}
    chosen[f"{TRAINING}.foreground_iou"] = best(steps, overlaps)
    settings = [f"{key}={value}" for key, value in chosen.items()]
    lambdas1 = start_grid(steps, f"{ENERGY}.lambda1", LAMBDAS, "full", ONE_ROUND, *settings)
    settings.append(f"{ENERGY}.lambda1={best(steps, lambdas1)}")
    print(f"chosen: {' '.join(settings)}", flush=True)
    return settings


def start_target(steps: Steps, settings: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """Start every method on the target, two processes per seed; return the names of the processes."""
    names = []
    for seed in seeds:
        for part, methods in (("a", ("warm-up-unary", "warm-up", "full")), ("b", ("unary",))):
            names.append(f"target-{seed}{part}")
            common = (GRID, steps.out / "coco17", "--seed", seed, "--set", *settings, "--method")
            steps.start(names[-1], *common, *methods, "--out", steps.out / "boxes")
    return names


def explain(steps: Steps, settings: Sequence[str], variants: Sequence[str]) -> list[str]:
    """Run every method on the playing classes with one setting changed at a time, a few processes at a time."""
    names = [f"play-{name}" for name in variants]
    for number, (name, variant) in enumerate(zip(names, (VARIANTS[name] for name in variants), strict=True)):
        if number >= SIDE_BY_SIDE:
            steps.wait(names[number - SIDE_BY_SIDE])
        common = (GRID, steps.out / "play", "--method", *ALL, "--set", ONE_ROUND)
        steps.start(name, *common, *settings, *variant)
    steps.wait(*names)
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=PARTS, choices=PARTS, help="parts to run; all by default")
    parser.add_argument("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE", help="for both runs")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--play-images", type=int, default=30_000, help="source images of OUT/play for transfer scores")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS, help="rows of explain")
    options = parser.parse_args()
    out, data = options.out.resolve(), options.data.resolve()
    out.mkdir(parents=True, exist_ok=True)
    steps = Steps(out)
    if {"choose", "explain"} & set(options.only):
        start_run(steps, data, "play", options.play_images, options.changes)
    if "target" in options.only:
        start_run(steps, data, "coco17", 111_085, options.changes)
    settings, names = list[str](), list[str]()
    if {"choose", "explain"} & set(options.only):
        steps.wait_for_file(out / "play" / "transfer" / "done.json", "run-play")
    if "choose" in options.only:
        settings = choose(steps)
    if "target" in options.only:
        steps.wait_for_file(out / "coco17" / "transfer" / "done.json", "run-coco17")
        names += start_target(steps, settings, options.seeds)
        steps.wait("run-coco17")
        methods = f"methods={json.dumps(['warm-up-unary', *BASELINES])}"
        changes = [part for change in (*options.changes, *settings, methods) for part in ("--set", change)]
        steps.start("baselines", "-m", "pairloc", "run", out / "coco17.toml", "--out", out / "coco17", *changes)
        study = ("-m", "pairloc", "study", "init", out / "coco17", "--out", out / "study", "--full-graph", 150)
        steps.wait("baselines")
        steps.start("study", *study)
    if "explain" in options.only:
        names += explain(steps, settings, options.variants)
    steps.wait(*names, "study")
    for name in names:
        for row in steps.rows(name):
            parts = {part: row.get(part) for part in ("all", "clean", "cluttered", "seconds")}
            print(f"{name}, {row['method']}: {parts}", flush=True)


if __name__ == "__main__":
    main()
