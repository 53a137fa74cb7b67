"""The paper's Table 1 in ILSVRC's shape, on COCO images: every method, detectors trained on its boxes, and their bound.

    .venv/bin/python benchmarks/ilsvrc_protocol.py DATA OUT

DATA holds `coco40`, as `pairloc split coco40` writes it, the images it names, and `resnet50.safetensors`
(benchmarks/resnet50_weights.py). One run with the preset `paper-ilsvrc` trains two proposers and the transfer scores;
`unary` and `full` then run side by side, detectors start as soon as their boxes are there, and the supervised one at
once. Ends with the table of `pairloc study table`. Needs one GPU of 80 GB or more. Finished steps are skipped when the
command is repeated.
"""

import argparse
import json
import shutil
from pathlib import Path

from paper_protocol import Steps

CONFIG = """preset = "paper-ilsvrc"
methods = ["warm-up-unary"]
memory = 100.0
[data]
source = "{data}/coco40/source.json"
source_images = "{data}"
target = "{data}/coco40/target_tags.csv"
target_images = "{data}"
truth = "{data}/coco40/target_truth.json"
[proposer]
backbone = "resnet50-v1"
backbone_weights = "{data}/resnet50.safetensors"
image_size = 320
crop = 0.6
epochs = 3
workers = 6
[extract]
workers = 8
[localization.energy]
max_compared_bags = 1500  # only one class is larger: person, with 10,993 bags
"""
METHODS = ("warm-up-unary", "warm-up", "unary", "full")


def with_methods(methods: list[str]) -> tuple[str, str]:
    """The option that selects methods."""
    return "--set", f"methods={json.dumps(methods)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the detectors")
    parser.add_argument("--baselines", nargs="*", default=["mi-svm", "deselaers", "lsda", "tang"])
    options = parser.parse_args()
    out, data = options.out.resolve(), options.data.resolve()
    out.mkdir(parents=True, exist_ok=True)
    steps = Steps(out)
    (out / "coco40.toml").write_text(CONFIG.format(data=data))
    changes = [part for change in options.changes for part in ("--set", change)]
    run = ("-m", "pairloc", "run", out / "coco40.toml", *changes, "--out")
    steps.start("run", *run, out / "run")
    steps.wait("run")
    if not (out / "run.ok").is_file():
        raise SystemExit(1)

    def detector(name: str, *boxes: object) -> None:
        """Start the training of a detector on the target's images, from the multi-class proposer."""
        settings = [f"epochs={options.epochs}", "batch=64", "lr=2e-4", "crop=0.6", "image_size=320"]
        settings += [f"{key}={value}" for key, value in (("backbone", '"resnet50-v1"'), ("pretrained", "false"))]
        start = ("--images", data, "--start", out / "run" / "proposer", "--preset", "paper", "--workers", 4)
        arguments = [part for setting in settings for part in ("--set", setting)]
        train = ("-m", "pairloc", "detect", "train", *boxes, *start, *arguments, "--out", out / f"detector-{name}")
        steps.start(f"detector-{name}", *train)

    detector("supervised", "--truth", data / "coco40" / "target_truth.json")
    for method in ("unary", "full"):  # two runs side by side cannot share a folder, so each gets a copy by hard links
        if not (out / method).is_dir():
            link, locks = (lambda a, b: Path(b).hardlink_to(a)), shutil.ignore_patterns(".lock")
            shutil.copytree(out / "run", out / method, copy_function=link, ignore=locks)
        steps.start(method, *run, out / method, *with_methods([method]))
    steps.wait("unary")
    detector("unary", "--boxes", out / "unary" / "boxes.json")
    steps.start("others", *run, out / "run", *with_methods(["warm-up-unary", "warm-up", *options.baselines]))
    steps.wait("full")
    detector("full", "--boxes", out / "full" / "boxes.json")
    steps.wait("others")
    for method in ("unary", "full"):
        shutil.copytree(out / method / method, out / "run" / method, dirs_exist_ok=True)
    steps.start("all", *run, out / "run", *with_methods([*METHODS, *options.baselines]))
    detections = []
    for name in ("supervised", "unary", "full"):
        steps.wait(f"detector-{name}")
        file, test = out / f"detections-{name}.json", data / "coco40" / "test_truth.json"
        evaluate = ("-m", "pairloc", "detect", "evaluate", out / f"detector-{name}", "--truth", test, "--images", data)
        steps.start(f"evaluate-{name}", *evaluate, "--out", file, "--workers", 4)
        detections += ["--detections", f"{name}={file}"]
    steps.wait("all", "evaluate-supervised", "evaluate-unary", "evaluate-full")
    table = (
        "-m",
        "pairloc",
        "study",
        "table",
        out / "run",
        "--as",
        "markdown",
        "--test",
        data / "coco40" / "test_truth.json",
    )
    steps.start("table", *table, *detections)
    steps.wait("table")
    print((out / "table.txt").read_text(), flush=True)


if __name__ == "__main__":
    main()
