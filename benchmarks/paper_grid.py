"""CorLoc of methods on the bags of a run, for several values of settings: the grids of docs/paper.md.

    .venv/bin/python benchmarks/paper_grid.py RUN --method warm-up --set localization.energy.alpha=0.01 [--seed 0 1 2]

Prints one line of JSON per method and seed: CorLoc @0.5 / @0.7 of all images, of clean and of cluttered ones (those
whose file name begins with val2017/), seconds, and the CorLoc@0.5 of every class; `--out` also writes the boxes. A
change of `transfer` learns the transfer scores anew.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.datasets.scored import ScoredBoxes
from pairloc.evaluation.corloc import corloc, localized
from pairloc.formats.coco import write_boxes
from pairloc.localization.engine import learn_source, localize_target
from pairloc.localization.methods import METHODS
from pairloc.platform import choose_device, learning_device
from pairloc.presets import merged, set_value
from pairloc.runs.run import open_run
from pairloc.settings import RunSettings


def subset(
    dataset: Dataset, found: ScoredBoxes, truth: GroundTruth, mask: np.ndarray[Any, np.dtype[np.bool_]]
) -> tuple[Dataset, ScoredBoxes, GroundTruth]:
    """Restrict boxes and ground truth to the images of a mask."""
    index = np.where(mask, np.cumsum(mask) - 1, -1)
    part = dataset.subset(np.flatnonzero(mask).tolist())
    kept = found.where(mask[found.image])
    boxes = ScoredBoxes(index[kept.image], kept.label, kept.boxes, kept.score)
    return part, boxes, truth.relabelled(index, np.arange(len(dataset.classes)))


def measure(dataset: Dataset, found: ScoredBoxes, truth: GroundTruth) -> dict[str, Any]:
    """CorLoc of all, clean and cluttered images, in percent."""
    cluttered = np.array([image.file.startswith("val2017/") for image in dataset.images])
    parts = {"all": np.ones(len(dataset), dtype=np.bool_), "clean": ~cluttered, "cluttered": cluttered}
    row: dict[str, Any] = {}
    for name, mask in parts.items():
        if mask.any():
            result = localized(*subset(dataset, found, truth, mask))
            at = [corloc(result, threshold, draws=1) for threshold in (0.5, 0.7)]
            row[name] = [round(100 * entry.mean, 1) for entry in at]
            if name == "all":
                row["classes"] = {key: round(100 * value, 1) for key, value in at[0].per_class.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--method", nargs="+", default=["full"])
    parser.add_argument("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, nargs="*", default=[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--images", type=Path, help="text file with the names of the images to use; all by default")
    options = parser.parse_args()
    device = learning_device(choose_device(options.device))
    run = open_run(options.run, device, lambda line: None)
    assert run.truth is not None
    dataset, truth = run.truth
    indices: list[int] | None = None
    if options.images is not None:
        names = set(options.images.read_text().split())
        indices = [index for index, image in enumerate(dataset.images) if image.file in names]
        new_index = np.full(len(dataset), -1)
        new_index[indices] = np.arange(len(indices))
        dataset, truth = dataset.subset(indices), truth.relabelled(new_index, np.arange(len(dataset.classes)))
    changes: dict[str, Any] = {}
    for change in options.changes:
        set_value(changes, change)
    for seed in options.seed:
        content = merged(run.settings.model_dump(mode="json"), changes)
        content = merged(content, {"localization": {"seed": seed}})
        settings = RunSettings.model_validate(content)
        learned = run.learned
        if any(change.startswith("transfer.") for change in options.changes):
            learned = learn_source(run.source_bags, run.source, settings.transfer, device=device, memory=run.memory)
        for method in options.method:
            start = time.perf_counter()
            found = localize_target(
                run.target_bags, dataset, learned, METHODS[method].section(settings), method=method,
                indices=indices, device=device, memory=run.memory, log=lambda line: print(f"# {line}", flush=True),
            )  # fmt: skip
            seconds = round(time.perf_counter() - start, 1)
            row = {"method": method, "seed": seed, "changes": options.changes, "seconds": seconds}
            print(json.dumps(row | measure(dataset, found.boxes, truth)), flush=True)
            if options.out is not None:
                write_boxes(options.out / f"{method}-{seed}.json", found.dataset, found.boxes)


if __name__ == "__main__":
    main()
