"""Benchmark reading of data: random annotations of COCO's size, 2,000 image headers, and the time to `--help`.

    .venv/bin/python benchmarks/data.py

Prints a table and the same as JSON.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from pairloc.curation.splits import COCO17

TRAIN_IMAGES, TRAIN_BOXES, VAL_IMAGES, VAL_BOXES = 118_287, 860_001, 5_000, 36_781


def annotations(images: int, boxes: int, first_id: int, generator: np.random.Generator) -> dict[str, object]:
    """Random COCO annotations: 80 classes, boxes, and outlines of 10 to 60 numbers as in the real files."""
    names = [*COCO17, *(f"class {i}" for i in range(63))]
    image_ids = generator.integers(first_id, first_id + images, boxes).tolist()
    labels = generator.integers(1, 81, boxes).tolist()
    corners = generator.uniform(0, 300, (boxes, 4)).round(2).tolist()
    outlines = generator.uniform(0, 600, 60).round(2).tolist()
    lengths = generator.integers(5, 30, boxes).tolist()
    return {
        "info": {},
        "images": [
            {"id": i, "file_name": f"{i:012d}.jpg", "width": 640, "height": 640, "license": 1}
            for i in range(first_id, first_id + images)
        ],
        "categories": [{"id": i, "name": name, "supercategory": "x"} for i, name in enumerate(names, start=1)],
        "annotations": [
            {"id": first_id * 100 + n, "image_id": image, "category_id": label, "bbox": box, "area": 1.0,
             "iscrowd": int(n % 86 == 0), "segmentation": [outlines[: 2 * length]]}
            for n, (image, label, box, length) in enumerate(zip(image_ids, labels, corners, lengths, strict=True))
        ],
    }  # fmt: skip


def timed(*arguments: str) -> tuple[float, float]:
    """Seconds and peak memory in GB of one call of pairloc in its own process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "pairloc", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="run with a thousandth of the data, as a smoke test")
    divisor = 1000 if parser.parse_args().tiny else 1
    half = max(1000 // divisor, 8)
    rows: list[dict[str, object]] = []

    def measure(what: str, limit: str, *arguments: str) -> None:
        seconds, peak = timed(*arguments)
        rows.append({"what": what, "seconds": round(seconds, 2), "peak GB so far": round(peak, 2), "limit": limit})

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        measure("pairloc --help", "0.5 s", "--help")
        measure(
            f"scenes, {2 * half:,} images",
            "",
            "scenes",
            "--out",
            f"{folder}/s",
            "--source-images",
            str(half),
            "--target-images",
            str(half),
        )
        measure(f"doctor, {2 * half:,} headers", "20 s", "doctor", f"{folder}/s")
        measure(f"doctor --deep, {2 * half:,} images", "", "doctor", f"{folder}/s", "--deep")
        generator = np.random.default_rng(0)
        for name, images, boxes, first in (
            ("train", TRAIN_IMAGES // divisor, TRAIN_BOXES // divisor, 1),
            ("val", VAL_IMAGES // divisor, VAL_BOXES // divisor, 900_000),
        ):
            (folder / f"{name}.json").write_text(json.dumps(annotations(images, boxes, first, generator)))
        size = (folder / "train.json").stat().st_size / 1e6
        what = f"split coco17, {TRAIN_IMAGES // divisor} images, {TRAIN_BOXES // divisor} boxes, {size:.0f} MB"
        files = [f"{folder}/train.json", f"{folder}/val.json"]
        measure(what, "60 s, 6 GB", "split", "coco17", "--annotations", *files, "--out", f"{folder}/o")
    for row in rows:
        print(f"{row['what']:60} {row['seconds']:>8} s {row['peak GB so far']:>6} GB   {row['limit']}")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
