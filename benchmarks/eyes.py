"""Compare networks of the proposer, one change at a time, by what their features allow on playing classes.

    .venv/bin/python benchmarks/eyes.py DATA OUT [--variants base lite2 ...] [--images 20000] [--side-by-side 4]

DATA holds `play`, as `pairloc split play` writes it, the images it names, and for some variants `resnet50.safetensors`
(benchmarks/resnet50_weights.py). Every variant trains a proposer on the same source images, extracts the bags of the
playing images, and prints a line of JSON: recall and oracle (benchmarks/oracle.py), CorLoc of `full` with the packaged
evidence (which was learned on these classes too, so only differences mean something), and seconds a step. Variants run
side by side; finished steps are skipped when the command is repeated. Needs a GPU.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
WEIGHTS = HERE.parent / "src" / "pairloc" / "weights" / "coco63"  # its evidence, not its proposer
VARIANTS = {  # one change each
    "base": (),
    "lite2": ("proposer.backbone=efficientnet-lite2",),
    "resnet50": ("proposer.backbone=resnet50-v1", "proposer.backbone_weights={data}/resnet50.safetensors"),
    "448": ("proposer.image_size=448",),
    "640": ("proposer.image_size=640",),
    "one-epoch": ("proposer.epochs=1",),
    "wide-head": ("proposer.head=2048",),
    "pyramid-256": ("proposer.pyramid=256",),
    "ignore-unlabelled": ("proposer.min_background_iou=0.1",),
    "class-agnostic": ("proposer.class_agnostic=true",),
    "proposals-300": ("extract.proposals=300",),
    "crops": ("extract.class_features=backbone-crops",),
}
CONFIG = """methods = ["warm-up-unary"]
calibrate = false
[data]
source = "{source}"
source_images = "{data}"
target = "{data}/play/target_tags.csv"
target_images = "{data}"
truth = "{data}/play/target_truth.json"
[proposer]
batch = 64
crop = 0.6
epochs = 3
held_out = 0.25
[localization.unary]
combination = "mixed"
"""


def drawn_source(data: Path, out: Path, images: int) -> Path:
    """Write the annotations of some source images, drawn with seed 0."""
    file = out / f"source-{images}.json"
    if not file.is_file():
        content = json.loads((data / "play" / "source.json").read_text())
        order = np.random.default_rng(0).permutation(len(content["images"]))[:images]
        chosen = [content["images"][index] for index in sorted(order.tolist())]
        ids = {image["id"] for image in chosen}
        boxes = [box for box in content["annotations"] if box["image_id"] in ids]
        file.write_text(json.dumps(content | {"images": chosen, "annotations": boxes}))
    return file


def step(out: Path, name: str, *command: object) -> str:
    """Run a step unless it was finished before; return what it printed."""
    done = out / f"{name}.txt"
    if not done.is_file():
        start = time.perf_counter()
        run = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False)
        print(f"{name}: {time.perf_counter() - start:.0f} s, status {run.returncode}", flush=True)
        if run.returncode:
            raise RuntimeError(f"{name} failed: {run.stderr[-500:]}")
        done.write_text(run.stdout)
    return done.read_text()


def trial(data: Path, out: Path, source: Path, name: str) -> str:
    """Run a variant: its line of JSON."""
    config, run = out / f"{name}.toml", out / name
    config.write_text(CONFIG.format(source=source, data=data))
    changes = [part for change in VARIANTS[name] for part in ("--set", change.format(data=data))]
    step(out, f"run-{name}", "-m", "pairloc", "run", config, "--out", run, *changes)
    oracle = json.loads(step(out, f"oracle-{name}", HERE / "oracle.py", run).splitlines()[-1])
    full = json.loads(
        step(out, f"full-{name}", HERE / "evidence.py", "measure", run, "--weights", WEIGHTS).splitlines()[-1]
    )
    row = {key: value for key, value in oracle.items() if key.startswith(("recall", "oracle"))}
    row |= {f"full, {part}": full[part] for part in ("all", "clean", "cluttered") if part in full}
    return json.dumps({"variant": name, **row})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--side-by-side", type=int, default=4)
    options = parser.parse_args()
    data, out = options.data.resolve(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    source = drawn_source(data, out, options.images)
    with ThreadPoolExecutor(options.side_by_side) as pool:
        trials = {name: pool.submit(trial, data, out, source, name) for name in options.variants}
        for name, result in trials.items():
            try:
                print(result.result(), flush=True)
            except RuntimeError as error:
                print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
