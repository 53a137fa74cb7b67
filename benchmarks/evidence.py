"""Learn how much evidence counts on playing classes, and measure what weights with learned evidence reach.

    .venv/bin/python benchmarks/evidence.py learn WEIGHTS OUT --data PLAY IMAGES [--unlike FOLDER ...] [--per-class 180]
    .venv/bin/python benchmarks/evidence.py measure WEIGHTS OUT --data TARGET IMAGES [--method full] [--set KEY=VALUE]

`learn` needs WEIGHTS that were never taught the classes of PLAY: a folder with target_tags and target_truth (.json or
.csv), as `pairloc split play` writes it. Files whose name begins with val2017/ are cluttered; of the others at most
`--per-class` images of every class are used. Folders given with `--unlike` hold images unlike the source (tags and
truth as above, such as `pairloc scenes` writes them): the confidence is learned on them too. OUT gets the bags,
evidence/ and calibration/, which belong into a folder of weights.

`measure` prints CorLoc @0.5 / @0.7 of all, clean and cluttered images and of every class, and for the confidence the
area under the ROC curve, the expected calibration error (ten bins) and its mean beside the share that is right.
Everything runs on the CPU; bags that exist are used again.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from paper_grid import measure

from pairloc.bags.extract import extract
from pairloc.bags.store import BagStore
from pairloc.datasets.dataset import Dataset
from pairloc.datasets.groundtruth import GroundTruth
from pairloc.evaluation.corloc import localized
from pairloc.formats.reading import read, read_annotated
from pairloc.localization.engine import localize_target
from pairloc.localization.learned import Learned
from pairloc.localization.playing import Game, learn_evidence
from pairloc.presets import merged, set_value
from pairloc.settings import LocalizationSettings
from pairloc.weights import extract_of, localization_of, weights_folder


def named(folder: Path, name: str) -> Path:
    """The file of this name in a folder, whatever its ending."""
    return next(path for path in sorted(folder.glob(f"{name}.*")) if path.suffix in (".json", ".csv"))


def is_cluttered(dataset: Dataset) -> npt.NDArray[np.bool_]:
    return np.array([image.file.startswith("val2017/") for image in dataset.images], dtype=np.bool_)


def drawn(dataset: Dataset, per_class: int) -> Dataset:
    """All cluttered images, and of the others at most so many of every class, in their order."""
    count: Counter[int] = Counter()
    chosen = set(np.flatnonzero(is_cluttered(dataset)).tolist())
    for index in np.random.default_rng(0).permutation(len(dataset)).tolist():
        if index not in chosen and any(count[label] < per_class for label in dataset.tags[index]):
            chosen.add(index)
            count.update(dataset.tags[index])
    return dataset.subset(sorted(chosen))


def bags_of(dataset: Dataset, weights: str, store: Path) -> BagStore:
    extract(dataset, weights_folder(weights) / "proposer", store, extract_of(weights))
    return BagStore(store)


def learn(options: argparse.Namespace, settings: LocalizationSettings) -> None:
    learned, truth = (
        Learned.load(weights_folder(options.weights)),
        read_annotated(named(options.data[0], "target_truth")),
    )
    tags = drawn(read(named(options.data[0], "target_tags"), images=options.data[1]), options.per_class)
    bags = bags_of(tags, options.weights, options.out / "bags-play")
    cluttered = np.flatnonzero(is_cluttered(tags)).tolist()
    games = [Game.of(bags, truth, learned, settings)]
    games += [Game.of(bags, truth, learned, settings, indices=cluttered)] if cluttered else []
    unlike = []
    for folder in options.unlike:
        other = bags_of(read(named(folder, "target_tags"), images=folder), options.weights, options.out / folder.name)
        unlike.append(Game.of(other, read_annotated(named(folder, "target_truth")), learned, settings))
    combination, calibration = learn_evidence(games, settings, unlike=unlike, log=print)
    combination.save(options.out / "evidence")
    calibration.save(options.out / "calibration")


def confidence_row(score: npt.NDArray[Any], right: npt.NDArray[Any]) -> dict[str, float]:
    """How well the confidence orders boxes, and how well it means what it says."""
    rank = np.empty(len(score))
    rank[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    positive, negative = int(right.sum()), int((~right).sum())
    auc = (rank[right].sum() - positive * (positive + 1) / 2) / max(positive * negative, 1)
    bin_of = np.minimum((score * 10).astype(int), 9)
    gaps = [abs(score[bin_of == b].mean() - right[bin_of == b].mean()) * (bin_of == b).mean() for b in set(bin_of)]
    row = {"AUC": auc, "ECE": sum(gaps), "mean": score.mean(), "right": right.mean()}
    return {name: round(float(value), 3) for name, value in row.items()}


def evaluate(options: argparse.Namespace, settings: LocalizationSettings) -> None:
    tags = read(named(options.data[0], "target_tags"), images=options.data[1])
    bags, learned = bags_of(tags, options.weights, options.out / "bags"), Learned.load(weights_folder(options.weights))
    annotated, objects = read_annotated(named(options.data[0], "target_truth"))
    label = np.array([tags.classes.index(name) if name in tags.classes else -1 for name in annotated.classes])
    rows = np.array([-1 if row is None else row for row in tags.indices_of(annotated)])
    truth: GroundTruth = objects.relabelled(rows, label)
    for method in options.method:
        start = time.perf_counter()
        found = localize_target(bags, tags, learned, settings, method=method)
        row = measure(tags, found.boxes, truth)
        result = localized(tags, found.boxes, truth)
        right, has_box, cluttered = result.right(0.5) > 0, ~np.isnan(result.score), is_cluttered(tags)[result.image]
        for name, mask in (("clean", ~cluttered), ("cluttered", cluttered)):
            if (mask & has_box).any():
                row[f"confidence, {name}"] = confidence_row(result.score[mask & has_box], right[mask & has_box])
        print(json.dumps({"method": method, **row, "seconds": round(time.perf_counter() - start)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("learn", "measure"))
    parser.add_argument("weights")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, nargs=2, required=True, metavar=("TAGS", "IMAGES"))
    parser.add_argument("--unlike", type=Path, nargs="*", default=[])
    parser.add_argument("--per-class", type=int, default=180)
    parser.add_argument("--method", nargs="+", default=["full"])
    parser.add_argument("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    settings = LocalizationSettings() if options.task == "learn" else localization_of(options.weights)
    changes: dict[str, Any] = {}
    for change in options.changes:
        set_value(changes, change)
    settings = LocalizationSettings.model_validate(merged(settings.model_dump(), changes))
    (learn if options.task == "learn" else evaluate)(options, settings)


if __name__ == "__main__":
    main()
