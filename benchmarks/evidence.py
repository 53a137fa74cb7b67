"""Learn how much evidence counts on playing classes, and measure what weights with learned evidence reach.

    .venv/bin/python benchmarks/playing_sets.py COCO SETS       (and `pairloc run` for every folder, as it says)
    .venv/bin/python benchmarks/evidence.py learn WEIGHTS --games RUN1 RUN2 ... [--unlike RUN ...] [--without TERM ...]
    .venv/bin/python benchmarks/evidence.py measure RUN --weights WEIGHTS [--method full] [--set KEY=VALUE]

`learn` needs runs whose weights were never taught the classes of their target, or were taught all of them (known
tags). Each becomes up to three games: all images, the clean and the cluttered ones; cluttered ones are in
cluttered.txt beside the target's tags, or have a name that begins with val2017/. Of more than --most images of a class
and kind some are drawn. Runs given with `--unlike` have images unlike the source: the confidence is learned on them
too. WEIGHTS gets evidence/ and calibration/. CorLoc of every game, each class judged by weights learned on the others,
is printed. `--without` leaves terms out, to see what they are worth.

`measure` takes the bags of a run with ground truth and prints CorLoc @0.5 / @0.7 of all, clean and cluttered images
and of every class, and for the confidence the area under the ROC curve, the expected calibration error (ten bins) and
its mean beside the share that is right. `--only clean` or `--only cluttered` localizes those images alone.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from paper_grid import measure
from playing_sets import drawn

from pairloc.evaluation.corloc import localized
from pairloc.localization.combination import Combination
from pairloc.localization.confidence import Calibration
from pairloc.localization.engine import localize_target
from pairloc.localization.evidence import TERMS
from pairloc.localization.learned import CALIBRATION, EVIDENCE
from pairloc.localization.playing import Game, learn_evidence
from pairloc.platform import choose_device
from pairloc.presets import merged, set_value
from pairloc.runs.run import Run, open_run
from pairloc.settings import LocalizationSettings


def changed(changes: Sequence[str]) -> LocalizationSettings:
    """The default settings with changes given as KEY=VALUE."""
    values: dict[str, Any] = {}
    for change in changes:
        set_value(values, change)
    return LocalizationSettings.model_validate(merged(LocalizationSettings().model_dump(), values))


def is_cluttered(run: Run) -> npt.NDArray[np.bool_]:
    listed = None if run.settings.data.target is None else run.settings.data.target.with_name("cluttered.txt")
    names = set(listed.read_text().splitlines()) if listed is not None and listed.is_file() else None
    files = [image.file for image in run.target.images]
    return np.array([file.startswith("val2017/") if names is None else file in names for file in files], dtype=np.bool_)


def games_of(folder: Path, settings: LocalizationSettings, device: str, most: int) -> list[Game]:
    """All images of a run, the clean and the cluttered ones; of more than `most` of a class some are drawn."""
    run = open_run(folder, device)
    assert run.truth is not None
    cluttered, dataset = is_cluttered(run), run.target
    kinds = {"clean": ~cluttered, "cluttered": cluttered} if cluttered.any() and not cluttered.all() else {"": None}
    chosen = {
        kind: sorted(drawn(dataset, np.arange(len(dataset)) if mask is None else np.flatnonzero(mask), most))
        for kind, mask in kinds.items()
    }
    parts = {"all": sorted(chain.from_iterable(chosen.values()))} | (chosen if len(chosen) > 1 else {})
    return [
        Game.of(
            run.target_bags, run.truth, run.learned, settings, indices=indices, name=f"{folder.parent.name}, {kind}",
            device=device, memory=run.memory,
        )
        for kind, indices in parts.items()
    ]  # fmt: skip


def learn(options: argparse.Namespace, settings: LocalizationSettings, device: str) -> None:
    for name in options.without:
        del TERMS[name]
    games = [game for folder in options.games for game in games_of(folder, settings, device, options.most)]
    unlike = [game for folder in options.unlike for game in games_of(folder, settings, device, options.most)]
    combination, calibration = learn_evidence(games, settings, unlike=unlike, log=partial(print, flush=True))
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
    for name in ("learn", "measure"):
        task = tasks.add_parser(name)
        task.add_argument("folder", type=Path)
        task.add_argument("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE")
        task.add_argument("--device", default="auto")
        if name == "learn":
            task.add_argument("--games", type=Path, nargs="+", required=True)
            task.add_argument("--unlike", type=Path, nargs="*", default=[])
            task.add_argument("--without", nargs="*", default=[], choices=TERMS, metavar="TERM", help=", ".join(TERMS))
            task.add_argument("--most", type=int, default=110, help="images of a class and kind (default: 110)")
        else:
            task.add_argument("--weights", type=Path)
            task.add_argument("--method", nargs="+", default=["full"])
            task.add_argument("--only", choices=("clean", "cluttered"))
    options = parser.parse_args()
    settings = changed(options.changes)
    (learn if options.task == "learn" else evaluate)(options, settings, choose_device(options.device))


if __name__ == "__main__":
    main()
