"""Learn how much evidence counts on playing classes, and measure what weights with learned evidence reach.

    .venv/bin/python benchmarks/evidence.py cut COCO OUT
    pairloc run OUT/draw-1/run.toml --out RUN1        (and so on, for every draw)
    .venv/bin/python benchmarks/evidence.py learn WEIGHTS --games RUN1 RUN2 ... [--unlike RUN ...]
    .venv/bin/python benchmarks/evidence.py measure RUN --weights WEIGHTS [--method full] [--set KEY=VALUE]

`cut` divides the 63 source classes of the COCO protocol into four draws. In each of them a quarter of the classes
plays: images of train2017 that show playing classes alone (clean), images of val2017 and of train2017 that show them
among others (cluttered), none with a target class. The proposer of a draw is trained on 20,000 other images. COCO
holds train2017/, val2017/ and their instances_*.json.

`learn` needs runs whose weights were never taught the classes of their target, or were taught all of them (known
tags). Each becomes up to three games: all images, the clean and the cluttered ones; cluttered ones are in
cluttered.txt beside the target's tags, or have a name that begins with val2017/. Runs given with `--unlike` have
images unlike the source, such as `pairloc scenes` writes them: the confidence is learned on them too. WEIGHTS gets
evidence/ and calibration/.

`measure` takes the bags of a run with ground truth and prints CorLoc @0.5 / @0.7 of all, clean and cluttered images
and of every class, and for the confidence the area under the ROC curve, the expected calibration error (ten bins) and
its mean beside the share that is right. `--only clean` or `--only cluttered` localizes those images alone.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from paper_grid import measure

from pairloc.curation.splits import COCO17, Annotated, Split, merge, restrict
from pairloc.datasets.dataset import Dataset
from pairloc.evaluation.corloc import localized
from pairloc.formats.reading import read_annotated
from pairloc.localization.combination import Combination
from pairloc.localization.confidence import Calibration
from pairloc.localization.engine import localize_target
from pairloc.localization.learned import CALIBRATION, EVIDENCE
from pairloc.localization.playing import Game, learn_evidence
from pairloc.platform import choose_device
from pairloc.presets import merged, set_value
from pairloc.runs.run import Run, open_run
from pairloc.settings import LocalizationSettings

DRAWS, SOURCE_IMAGES, CLEAN_OF_CLASS, CLUTTERED_OF_CLASS = 4, 20_000, 120, 40
CONFIG = """methods = ["warm-up-unary"]
calibrate = false
[data]
source = "{folder}/source.json"
source_images = "{images}"
target = "{folder}/target_tags.csv"
target_images = "{images}"
truth = "{folder}/target_truth.json"
[proposer]
batch = 64
crop = 0.6
epochs = 3
held_out = 0.25
[localization.unary]
combination = "mixed"
"""


def is_cluttered(run: Run) -> npt.NDArray[np.bool_]:
    listed = None if run.settings.data.target is None else run.settings.data.target.with_name("cluttered.txt")
    names = set(listed.read_text().splitlines()) if listed is not None and listed.is_file() else None
    files = [image.file for image in run.target.images]
    return np.array([file.startswith("val2017/") if names is None else file in names for file in files], dtype=np.bool_)


def drawn(dataset: Dataset, candidates: npt.NDArray[Any], classes: Sequence[int], most: int) -> list[int]:
    """Draw images until every class has `most` of them, or all there are."""
    count: Counter[int] = Counter()
    chosen = []
    for index in np.random.default_rng(0).permutation(candidates).tolist():
        tags = set(dataset.tags[index]) & set(classes)
        if any(count[label] < most for label in tags):
            chosen.append(index)
            count.update(tags)
    return chosen


def cut(options: argparse.Namespace) -> None:
    parts: list[Annotated] = [
        read_annotated(options.coco / f"instances_{part}.json", images=options.coco / part)
        for part in ("train2017", "val2017")
    ]
    dataset, truth = merge(parts)
    random, is_train = np.random.default_rng(0), np.arange(len(dataset)) < len(parts[0][0])
    names = [name for name in dataset.classes if name not in COCO17]
    shuffled = random.permutation(names).tolist()

    def shows(labels: Sequence[int]) -> npt.NDArray[np.bool_]:
        return np.array([bool(set(tags) & set(labels)) for tags in dataset.tags])

    def labels_of(chosen: Sequence[str]) -> list[int]:
        return [label for label, name in enumerate(dataset.classes) if name in chosen]

    has_target, has_source = shows(labels_of(COCO17)), shows(labels_of(names))
    pool = np.zeros(len(dataset), dtype=np.bool_)
    pool[random.permutation(np.flatnonzero(is_train & has_source))[:SOURCE_IMAGES]] = True
    for draw in range(DRAWS):
        playing, taught = (
            labels_of(shuffled[draw::DRAWS]),
            labels_of([n for n in names if n not in shuffled[draw::DRAWS]]),
        )
        shown, among_others = shows(playing), shows(taught) | has_target
        clean = drawn(dataset, np.flatnonzero(is_train & shown & ~among_others), playing, CLEAN_OF_CLASS)
        mixed = np.flatnonzero(is_train & shown & among_others & ~has_target & ~pool)
        mask = ~is_train & shown & ~has_target
        mask[[*clean, *drawn(dataset, mixed, playing, CLUTTERED_OF_CLASS)]] = True
        source = restrict(dataset, truth, pool & shows(taught) & ~mask, taught)
        folder = options.out / f"draw-{draw + 1}"
        Split(source, restrict(dataset, truth, mask, playing)).write(folder)
        cluttered = [dataset.images[index].file for index in np.flatnonzero(mask & among_others)]
        (folder / "cluttered.txt").write_text("".join(f"{file}\n" for file in cluttered))
        (folder / "run.toml").write_text(CONFIG.format(folder=folder.resolve(), images=options.coco.resolve()))
        print(f"{folder}: {', '.join(dataset.classes[label] for label in playing)}; {int(mask.sum())} images")


def game(run: Run, settings: LocalizationSettings, device: str, indices: list[int] | None = None) -> Game:
    assert run.truth is not None
    return Game.of(
        run.target_bags, run.truth, run.learned, settings, indices=indices, device=device, memory=run.memory
    )  # fmt: skip


def learn(options: argparse.Namespace, settings: LocalizationSettings, device: str) -> None:
    games = []
    for folder in options.games:
        run = open_run(folder, device)
        cluttered = is_cluttered(run)
        kinds = (cluttered, ~cluttered) if cluttered.any() and not cluttered.all() else ()
        games += [game(run, settings, device)]
        games += [game(run, settings, device, np.flatnonzero(kind).tolist()) for kind in kinds]
    unlike = [game(open_run(folder, device), settings, device) for folder in options.unlike]
    combination, calibration = learn_evidence(games, settings, unlike=unlike, log=print)
    combination.save(options.folder / EVIDENCE)
    calibration.save(options.folder / CALIBRATION)


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


def evaluate(options: argparse.Namespace, settings: LocalizationSettings, device: str) -> None:
    run = open_run(options.folder, device)
    assert run.truth is not None
    dataset, truth = run.truth
    learned, cluttered = run.learned, is_cluttered(run)
    if options.weights is not None:
        combination, calibration = (
            Combination.load(options.weights / EVIDENCE),
            Calibration.load(options.weights / CALIBRATION),
        )
        learned = replace(learned, combination=combination, calibration=calibration)
    indices = np.arange(len(dataset))
    if options.only is not None:
        indices = np.flatnonzero(cluttered if options.only == "cluttered" else ~cluttered)
    new_index = np.full(len(dataset), -1)
    new_index[indices] = np.arange(len(indices))
    dataset, cluttered = dataset.subset(indices.tolist()), cluttered[indices]
    truth = truth.relabelled(new_index, np.arange(len(dataset.classes)))
    for method in options.method:
        start = time.perf_counter()
        found = localize_target(
            run.target_bags, dataset, learned, settings, method=method, indices=indices.tolist(), device=device,
            memory=run.memory,
        )  # fmt: skip
        row = measure(dataset, found.boxes, truth)
        result = localized(dataset, found.boxes, truth)
        right, has_box = result.right(0.5) > 0, ~np.isnan(result.score)
        for name, mask in (("clean", ~cluttered), ("cluttered", cluttered)):
            rows = mask[result.image] & has_box
            if rows.any():
                row[f"confidence, {name}"] = confidence_row(result.score[rows], right[rows])
        row |= {"sharing": [found.sharing.images, found.sharing.several]}
        print(json.dumps({"method": method, **row, "seconds": round(time.perf_counter() - start)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    cutting = tasks.add_parser("cut")
    cutting.add_argument("coco", type=Path)
    cutting.add_argument("out", type=Path)
    for name in ("learn", "measure"):
        task = tasks.add_parser(name)
        task.add_argument("folder", type=Path)
        task.add_argument("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE")
        task.add_argument("--device", default="auto")
        if name == "learn":
            task.add_argument("--games", type=Path, nargs="+", required=True)
            task.add_argument("--unlike", type=Path, nargs="*", default=[])
        else:
            task.add_argument("--weights", type=Path)
            task.add_argument("--method", nargs="+", default=["full"])
            task.add_argument("--only", choices=("clean", "cluttered"))
    options = parser.parse_args()
    if options.task == "cut":
        cut(options)
        return
    changes: dict[str, Any] = {}
    for change in options.changes:
        set_value(changes, change)
    settings = LocalizationSettings.model_validate(merged(LocalizationSettings().model_dump(), changes))
    (learn if options.task == "learn" else evaluate)(options, settings, choose_device(options.device))


if __name__ == "__main__":
    main()
