"""Make the packaged weights anew: proposers, transfer scores, evidence and confidence, in one call on a GPU.

    .venv/bin/python benchmarks/playing_sets.py COCO SETS
    .venv/bin/python benchmarks/make_weights.py prepare COCO SETS     (no GPU needed; COCO and SETS stay in place)
    .venv/bin/python benchmarks/make_weights.py make SETS OUT [--set proposer.backbone=dinov2-small ...]

`prepare` adds the large sets to those of playing_sets.py: coco63 and coco80 (all images of train2017 with a class of
the 63 or the 80; the target is that of the paper, or val2017) and play46 (46 classes; the 17 others play).

`make` trains a proposer for each of these and for every draw, side by side, with the same changed settings, extracts
the other sets with them, learns evidence and confidence from all draws and play46, and writes OUT/coco63 and
OUT/coco80, small enough to package. At the end it measures `full` on the target of coco63 and known tags on val2017.
OUT/STEP.txt has what a step printed, with its seconds; finished steps are skipped when the command is repeated.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paper_protocol import Steps
from playing_sets import DRAWS, write_run

from pairloc.formats.reading import read_annotated
from pairloc.localization.learned import EVIDENCE

HERE = Path(__file__).parent
LARGE = """source = "{source}"
source_images = "{images}"
allow_overlap = {overlap}
[proposer]
batch = 64
crop = 0.6
epochs = 1
held_out = 0.1
[transfer]
images = 10000
[localization.unary]
combination = "mixed"
"""
TRAINED = ("coco63", "coco80", "play46", *(f"draw-{draw + 1}" for draw in range(DRAWS)))
GAMES = ("play46", *(f"{kind}-{draw + 1}" for kind in ("draw", "plain") for draw in range(DRAWS)), "known")
UNLIKE = ("scenes", "textures")
MEASURED = {"coco63": ("coco63", "known-63", "plain"), "coco80": ("coco80",)}  # sets to judge the weights on


def prepare(coco: Path, sets: Path) -> None:
    """Write the large sets."""
    train, val = (coco / f"instances_{part}.json" for part in ("train2017", "val2017"))
    for name, split in (("coco63", "coco17"), ("play46", "play")):
        command = (sys.executable, "-m", "pairloc", "split", split, val, "--annotations", train, "--out", sets / name)
        subprocess.run(list(map(str, command)), check=True)
        write_large(sets / name, coco, sets / name / "source.json", coco)
    folder = sets / "coco80"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(train, folder / "source.json")
    content = json.loads(val.read_text())
    images = [image | {"file_name": f"val2017/{image['file_name']}"} for image in content["images"]]
    (folder / "target_truth.json").write_text(json.dumps(content | {"images": images}))
    dataset, _ = read_annotated(folder / "target_truth.json", images=coco)
    rows = [
        f"{image.file},{dataset.classes[label]}\n"
        for image, labels in zip(dataset.images, dataset.tags, strict=True)
        for label in labels
    ]
    (folder / "target_tags.csv").write_text("image,label\n" + "".join(rows))
    write_large(folder, coco, folder / "source.json", coco / "train2017", overlap=True)


def write_large(folder: Path, images: Path, source: Path, source_images: Path, *, overlap: bool = False) -> None:
    """Write the settings of a run on a large source."""
    more = LARGE.format(source=source.resolve(), images=source_images.resolve(), overlap=str(overlap).lower())
    write_run(folder, images, "calibrate = false", more)


def make(sets: Path, out: Path, changes: list[str], side_by_side: int) -> None:
    """Train, extract, learn, package and measure."""
    out.mkdir(parents=True, exist_ok=True)
    steps, workers = Steps(out), max(1, (os.cpu_count() or 1) // side_by_side - 1)
    shared = [f"proposer.workers={workers}", f"extract.workers={workers}"]
    arguments = [part for change in (*changes, *shared) for part in ("--set", change)]

    def run(name: str, *more: str) -> None:
        folder = sets / name
        steps.start(name, "-m", "pairloc", "run", folder / "run.toml", "--out", folder / "run", *more)
        steps.wait(name)

    with ThreadPoolExecutor(side_by_side) as pool:
        list(pool.map(lambda name: run(name, *arguments), TRAINED))
        others = [name for name in (*GAMES, *UNLIKE) if name not in TRAINED]
        list(pool.map(lambda name: run(name, "--set", shared[1]), others))
    games, unlike = ([sets / name / "run" for name in names] for names in (GAMES, UNLIKE))
    steps.start("learn", HERE / "evidence.py", "learn", out / "learned", "--games", *games, "--unlike", *unlike)
    steps.wait("learn")
    if not (out / "learned" / EVIDENCE).is_dir():
        raise SystemExit("no evidence was learned")
    for name in MEASURED:
        folder = sets / name / "run"
        steps.start(
            f"make-{name}", "-m", "pairloc", "weights", "make", folder, "--out", out / name,
            "--evidence", out / "learned",
        )  # fmt: skip
    steps.wait(*(f"make-{name}" for name in MEASURED))
    for name, judged in MEASURED.items():
        for part in judged:
            if part != name:  # its run.toml names the packaged weights
                changed = (sets / part / "run.toml").read_text().replace('"coco63"', json.dumps(str(out / name)))
                (sets / part / "run.toml").write_text(changed)
                run(part)
            methods = ("warm-up-unary", "warm-up", "unary", "full")
            steps.start(
                f"measure-{part}", HERE / "evidence.py", "measure", sets / part / "run", "--weights", out / name,
                "--method", *methods,
            )  # fmt: skip
            steps.wait(f"measure-{part}")
            for row in steps.rows(f"measure-{part}"):
                print(part, json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    task = tasks.add_parser("prepare")
    task.add_argument("coco", type=Path)
    task.add_argument("sets", type=Path)
    task = tasks.add_parser("make")
    task.add_argument("sets", type=Path)
    task.add_argument("out", type=Path)
    task.add_argument("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE")
    task.add_argument("--side-by-side", type=int, default=4)
    options = parser.parse_args()
    if options.task == "prepare":
        prepare(options.coco.resolve(), options.sets.resolve())
    else:
        make(options.sets.resolve(), options.out.resolve(), options.changes, options.side_by_side)


if __name__ == "__main__":
    main()
