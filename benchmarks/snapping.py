"""Measure what snapping gains on the boxes of a finished run, for several limits, and draw boxes before and after.

    make segmenter
    .venv/bin/python benchmarks/snapping.py RUN [--most 30] [--method full] [--figure before-after.png]

RUN needs ground truth. Of every class and kind (clean, cluttered; evidence.py says which) at most --most images are
drawn. Prints one line of JSON per limit: CorLoc @0.5 / @0.7 of all, clean and cluttered images, as means over classes,
and the fraction of boxes that moved; then the seconds an image of the segmenter took. The figure shows twelve boxes
that moved, drawn at random: before (dashed), after (solid), truth (thin).
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evidence import is_cluttered
from paper_grid import measure
from playing_sets import drawn

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.detector.reading import batches
from pairloc.evaluation.table import align
from pairloc.formats.reading import read_boxes
from pairloc.images import open_image
from pairloc.platform import choose_device
from pairloc.progress import track
from pairloc.refinement.mobilesam import MobileSam
from pairloc.refinement.snapping import snap
from pairloc.runs.run import open_run
from pairloc.settings import SnapSettings

LIMITS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7)
Corners = np.ndarray[Any, np.dtype[np.float64]]


def snapped(dataset: Dataset, boxes: ScoredBoxes, images: list[int], device: str) -> tuple[dict[float, Corners], float]:
    """The boxes (n, 4) for every limit, and the seconds an image of the segmenter; other images keep their boxes."""
    segmenter = MobileSam.load(device=device)
    after = {limit: boxes.boxes.copy() for limit in LIMITS}
    paths, seconds = [dataset.path(index) for index in images], 0.0
    reader = batches(paths, [[index] for index in range(len(paths))], 0)
    for index, batch in zip(images, track(reader, len(paths), "images", size=len), strict=True):
        rows = np.flatnonzero(boxes.image == index)
        before = torch.from_numpy(boxes.boxes[rows])
        start = time.perf_counter()
        masks = segmenter(batch.require_all().to(device)[0], before.float().to(device))
        masks.quality.cpu()  # waits for the device
        seconds += time.perf_counter() - start
        for limit in LIMITS:
            after[limit][rows] = snap(before, masks, SnapSettings(min_iou=limit))[0].numpy()
    return after, seconds / len(images)


def draw(
    file: Path, dataset: Dataset, boxes: ScoredBoxes, after: Corners, truth: GroundTruth, images: list[int]
) -> None:
    """Twelve boxes that moved, before and after."""
    from matplotlib import pyplot as plt
    from matplotlib.patches import Rectangle

    moved = np.flatnonzero((boxes.boxes != after).any(axis=1) & np.isin(boxes.image, images))
    rows = np.random.default_rng(0).permutation(moved)[:12]
    figure, axes = plt.subplots(3, 4, figsize=(12, 9), layout="constrained")
    for axis, row in zip(axes.flat, rows, strict=False):
        axis.imshow(open_image(dataset.path(int(boxes.image[row]))))
        mine = (truth.image == boxes.image[row]) & (truth.label == boxes.label[row])
        styles = [(box, "white", "-", 1.0) for box in truth.boxes[mine]]
        styles += [(boxes.boxes[row], "tab:orange", "--", 2.0), (after[row], "tab:cyan", "-", 2.5)]
        for (x1, y1, x2, y2), colour, line, thick in styles:
            corner, width, height = (x1, y1), x2 - x1, y2 - y1
            axis.add_patch(
                Rectangle(corner, width, height, fill=False, edgecolor=colour, linestyle=line, linewidth=thick)
            )
        axis.set_title(dataset.classes[boxes.label[row]], fontsize=10)
        axis.axis("off")
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--method", default="full")
    parser.add_argument("--most", type=int, default=30, help="images of a class and kind (default: 30)")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = choose_device(options.device)
    run = open_run(options.run, device)
    assert run.truth is not None
    dataset, truth = run.truth
    boxes = align(*read_boxes(options.run / options.method / "boxes.json"), dataset)
    cluttered = is_cluttered(run)
    images = sorted({i for kind in (cluttered, ~cluttered) for i in drawn(dataset, np.flatnonzero(kind), options.most)})
    new_index = np.full(len(dataset), -1)
    new_index[images] = np.arange(len(images))
    part, found_truth = dataset.subset(images), truth.relabelled(new_index, np.arange(len(dataset.classes)))
    inside = np.isin(boxes.image, images)

    def row(corners: Corners) -> dict[str, Any]:
        found = replace(boxes, boxes=corners).where(inside)
        return measure(part, replace(found, image=new_index[found.image]), found_truth)

    print(json.dumps({"images": len(images), "before": row(boxes.boxes)}), flush=True)
    after, seconds = snapped(dataset, boxes, images, device)
    for limit, corners in after.items():
        share = float((corners != boxes.boxes).any(axis=1)[inside].mean())
        print(json.dumps({"min_iou": limit, "moved": round(share, 3), **row(corners)}))
    print(json.dumps({"seconds an image": round(seconds, 3)}))
    if options.figure is not None:
        draw(options.figure, dataset, boxes, after[SnapSettings().min_iou], truth, images)


if __name__ == "__main__":
    main()
