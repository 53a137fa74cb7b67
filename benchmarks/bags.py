"""Benchmark extraction: images per second, memory for ten times the images, and quality and cost of class features.

    .venv/bin/python benchmarks/bags.py PROPOSER SOURCE.json IMAGES [--count 1000] [--device cpu]

Prints a table and the same as JSON. The quality of class features is the fraction of the source's boxes whose nearest
neighbour by cosine, among the boxes of other images, has the same class.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from pairloc.bags.extract import extract
from pairloc.bags.features import feature_extractor
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.detector.reading import load_image
from pairloc.formats.reading import read_annotated
from pairloc.platform import peak_memory
from pairloc.settings import ExtractSettings

Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("proposer", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--only-extract", action="store_true", help="run one extraction and print its peak memory")
    arguments = parser.parse_args()
    if arguments.only_extract:
        print(json.dumps(extraction(arguments, arguments.count)))
        return
    rows: list[Row] = [in_subprocess(arguments, arguments.count), in_subprocess(arguments, 10 * arguments.count)]
    for name in ("backbone-roi", "backbone-crops"):
        rows.append(quality(arguments, name))
    for row in rows:
        print(
            ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    print(json.dumps(rows))


def in_subprocess(arguments: argparse.Namespace, count: int) -> Row:
    """Run an extraction in its own process, so that its peak memory can be measured."""
    command = [sys.executable, __file__, arguments.proposer, arguments.data, arguments.images, "--only-extract"]
    for name in ("device", "workers", "batch"):
        command += [f"--{name}", getattr(arguments, name)]
    done = subprocess.run([*map(str, command), "--count", str(count)], capture_output=True, text=True, check=True)
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def extraction(arguments: argparse.Namespace, count: int) -> Row:
    """Images per second and peak memory for `count` images, which repeat if the data set has fewer."""
    dataset, _ = read_annotated(arguments.data, images=arguments.images)
    subset = dataset.subset([index % len(dataset) for index in range(count)])
    settings = ExtractSettings(batch=arguments.batch, workers=arguments.workers)
    with tempfile.TemporaryDirectory() as folder:
        warm_up = dataset.subset(range(min(2 * arguments.batch, len(dataset))))
        extract(warm_up, arguments.proposer, Path(folder) / "warm", settings, device=arguments.device)
        start = time.perf_counter()
        extract(subset, arguments.proposer, Path(folder) / "store", settings, device=arguments.device)
        seconds = time.perf_counter() - start
    peak = (peak_memory() or 0) / 1e9
    return {"what": "extract, B=100", "images": count, "images/s": count / seconds, "peak GB": peak}


def quality(arguments: argparse.Namespace, name: str) -> Row:
    """Nearest-neighbour accuracy of class features on true boxes, and their time for 100 boxes per image."""
    dataset, truth = read_annotated(arguments.data, images=arguments.images)
    extractor = feature_extractor(name, arguments.device)
    features, labels, images = [], [], []
    for index in range(min(arguments.count, len(dataset))):
        image_truth = large(truth.of_image(index))
        if not len(image_truth):
            continue
        image = load_image(dataset.path(index)).to(arguments.device).float() / 255
        boxes = torch.from_numpy(image_truth.boxes).float().to(arguments.device)
        features.append(extractor([image], [boxes])[0].float().cpu())
        labels += image_truth.label.tolist()
        images += [index] * len(image_truth)
    table = torch.nn.functional.normalize(torch.cat(features), dim=1)
    similarity = table @ table.T
    image_index = torch.tensor(images)
    similarity[image_index[:, None] == image_index] = -2
    correct = torch.tensor(labels)[similarity.argmax(dim=1)] == torch.tensor(labels)
    hundred_boxes = torch.rand(100, 4).sort(dim=1).values.to(arguments.device) * image.shape[1]
    times = []
    for _ in range(6):
        start = time.perf_counter()
        extractor([image], [hundred_boxes])
        if arguments.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    per_class = [float(correct[torch.tensor(labels) == c].double().mean()) for c in sorted(set(labels))]
    return {
        "what": name,
        "boxes": len(labels),
        "same class": float(np.mean(per_class)),
        "ms an image": 1000 * sorted(times)[2],
    }


def large(truth: GroundTruth) -> GroundTruth:
    """The boxes with sides of at least 32 pixels, which are large enough to recognise."""
    sides = truth.boxes[:, 2:] - truth.boxes[:, :2]
    return truth.where((sides >= 32).all(axis=1) & ~truth.ignored)


if __name__ == "__main__":
    main()
