"""Compare networks of the proposer, one change at a time, by what their features allow on playing classes.

    .venv/bin/python benchmarks/eyes.py DATA OUT [--variants base lite2 ...] [--images 20000] [--side-by-side 4]

DATA holds `play`, as `pairloc split play` writes it, the images it names, and for some variants `resnet50.safetensors`
and `dinov2.safetensors` (benchmarks/resnet50_weights.py, dinov2_weights.py). Every variant trains a proposer on the
same source images, extracts the bags of the playing images, and prints a line of JSON: recall and oracle
(benchmarks/oracle.py), CorLoc of `full` with the packaged evidence (which was learned on these classes too, so only
differences mean something). OUT/STEP.txt has what a step printed, with its seconds. Variants run side by side; finished
steps are skipped when the command is repeated. Needs a GPU.
"""

import argparse
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from paper_protocol import Steps
from playing_sets import LEARN, write_run

HERE = Path(__file__).parent
WEIGHTS = HERE.parent / "src" / "pairloc" / "weights" / "coco63"  # its evidence, not its proposer
VARIANTS = {  # one change each
    "base": (),
    "lite2": ("proposer.backbone=efficientnet-lite2",),
    "resnet50": (
        "proposer.backbone=resnet50-v1",
        "proposer.backbone_weights={data}/resnet50.safetensors",
        "proposer.lr=2e-4",
    ),
    "dinov2": ("proposer.backbone=dinov2-small", "proposer.backbone_weights={data}/dinov2.safetensors"),
    "dinov2-448": (
        "proposer.backbone=dinov2-small",
        "proposer.backbone_weights={data}/dinov2.safetensors",
        "proposer.image_size=448",
    ),
    "448": ("proposer.image_size=448",),
    "640": ("proposer.image_size=640",),
    "one-epoch": ("proposer.epochs=1",),
    "wide-head": ("proposer.head=2048",),
    "pyramid-256": ("proposer.pyramid=256",),
    "soft-labels": ("proposer.soft_labels=true",),
    "contrast-0.1": ("proposer.contrast=0.1",),
    "contrast-0.5": ("proposer.contrast=0.5",),
    "ignore-unlabelled": ("proposer.min_background_iou=0.1",),
    "class-agnostic": ("proposer.class_agnostic=true",),
    "proposals-300": ("extract.proposals=300",),
    "crops": ("extract.class_features=backbone-crops",),
}


def write_set(data: Path, folder: Path, images: int) -> None:
    """Write the playing target and some source images, drawn with seed 0, as a set that `pairloc run` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("target_tags.csv", "target_truth.json"):
        shutil.copy(data / "play" / name, folder)
    content = json.loads((data / "play" / "source.json").read_text())
    order = np.random.default_rng(0).permutation(len(content["images"]))[:images]
    chosen = [content["images"][index] for index in sorted(order.tolist())]
    ids = {image["id"] for image in chosen}
    boxes = [box for box in content["annotations"] if box["image_id"] in ids]
    (folder / "source.json").write_text(json.dumps(content | {"images": chosen, "annotations": boxes}))
    write_run(folder, data, "calibrate = false", LEARN)


def trial(steps: Steps, data: Path, workers: int, name: str) -> str:
    """Run a variant: its line of JSON, without what a failed step would have added."""
    run = steps.out / name
    shared = (f"proposer.workers={workers}", f"extract.workers={workers}")
    changes = [part for change in (*VARIANTS[name], *shared) for part in ("--set", change.format(data=data))]
    commands = {
        f"run-{name}": ("-m", "pairloc", "run", steps.out / "set" / "run.toml", "--out", run, *changes),
        f"oracle-{name}": (HERE / "oracle.py", run),
        f"full-{name}": (HERE / "evidence.py", "measure", run, "--weights", WEIGHTS),
    }
    row: dict[str, object] = {"variant": name}
    for step, command in commands.items():
        steps.start(step, *command)
        steps.wait(step)
        for result in steps.rows(step):
            row |= {key: value for key, value in result.items() if key.startswith(("recall", "oracle"))}
            row |= {f"full, {part}": result[part] for part in ("all", "clean", "cluttered") if part in result}
    return json.dumps(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--side-by-side", type=int, default=4)
    options = parser.parse_args()
    data, out = options.data.resolve(), options.out.resolve()
    write_set(data, out / "set", options.images)
    steps, workers = Steps(out), max(1, (os.cpu_count() or 1) // options.side_by_side - 1)
    with ThreadPoolExecutor(options.side_by_side) as pool:
        for line in pool.map(partial(trial, steps, data, workers), options.variants):
            print(line, flush=True)


if __name__ == "__main__":
    main()
