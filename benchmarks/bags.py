"""Extraction: images a second, memory for ten times the images, and which class features are worth their cost.

    .venv/bin/python benchmarks/bags.py PROPOSER SOURCE.json IMAGES [--count 1000] [--device cpu]

Prints a table and the same as JSON. Quality of class features: of the source's own boxes, the share whose nearest
neighbour by cosine, in another image, is of the same class.
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
    parser.add_argument("--only-extract", action="store_true", help="one extraction, and its peak memory")
    arguments = parser.parse_args()
    if arguments.only_extract:
        print(json.dumps(extraction(arguments, arguments.count)))
        return
    rows: list[Row] = [apart(arguments, arguments.count), apart(arguments, 10 * arguments.count)]
    for name in ("backbone-roi", "backbone-crops"):
        rows.append(quality(arguments, name))
    for row in rows:
        print(
            ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    print(json.dumps(rows))


def apart(arguments: argparse.Namespace, count: int) -> Row:
    """An extraction in a process of its own."""
    command = [sys.executable, __file__, arguments.proposer, arguments.data, arguments.images, "--only-extract"]
    for name in ("device", "workers", "batch"):
        command += [f"--{name}", getattr(arguments, name)]
    shown = subprocess.run([*map(str, command), "--count", str(count)], capture_output=True, text=True, check=True)
    row: Row = json.loads(shown.stdout.splitlines()[-1])
    return row


def extraction(arguments: argparse.Namespace, count: int) -> Row:
    """Images a second and peak memory for so many images (taken again from the start where there are fewer)."""
    dataset, _ = read_annotated(arguments.data, images=arguments.images)
    some = dataset.subset([index % len(dataset) for index in range(count)])
    settings = ExtractSettings(batch=arguments.batch, workers=arguments.workers)
    with tempfile.TemporaryDirectory() as folder:
        warm = dataset.subset(range(min(2 * arguments.batch, len(dataset))))
        extract(warm, arguments.proposer, Path(folder) / "warm", settings, device=arguments.device)
        start = time.perf_counter()
        extract(some, arguments.proposer, Path(folder) / "store", settings, device=arguments.device)
        seconds = time.perf_counter() - start
    peak = (peak_memory() or 0) / 1e9
    return {"what": "extract, B=100", "images": count, "images/s": count / seconds, "peak GB": peak}


def quality(arguments: argparse.Namespace, name: str) -> Row:
    """Nearest-neighbour accuracy of class features on true boxes, and what they cost at 100 boxes an image."""
    dataset, truth = read_annotated(arguments.data, images=arguments.images)
    extractor = feature_extractor(name, arguments.device)
    features, labels, images = [], [], []
    for index in range(min(arguments.count, len(dataset))):
        own = large(truth.of_image(index))
        if not len(own):
            continue
        image = load_image(dataset.path(index)).to(arguments.device).float() / 255
        boxes = torch.from_numpy(own.boxes).float().to(arguments.device)
        features.append(extractor([image], [boxes])[0].float().cpu())
        labels += own.label.tolist()
        images += [index] * len(own)
    table = torch.nn.functional.normalize(torch.cat(features), dim=1)
    similarity = table @ table.T
    at = torch.tensor(images)
    similarity[at[:, None] == at] = -2
    right = torch.tensor(labels)[similarity.argmax(dim=1)] == torch.tensor(labels)
    many = torch.rand(100, 4).sort(dim=1).values.to(arguments.device) * image.shape[1]
    times = []
    for _ in range(6):
        start = time.perf_counter()
        extractor([image], [many])
        if arguments.device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    per_class = [float(right[torch.tensor(labels) == c].double().mean()) for c in sorted(set(labels))]
    return {
        "what": name,
        "boxes": len(labels),
        "same class": float(np.mean(per_class)),
        "ms an image": 1000 * sorted(times)[2],
    }


def large(truth: GroundTruth) -> GroundTruth:
    """The boxes that show something."""
    sides = truth.boxes[:, 2:] - truth.boxes[:, :2]
    return truth.where((sides >= 32).all(axis=1) & ~truth.ignored)


if __name__ == "__main__":
    main()
