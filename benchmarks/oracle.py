"""Measure what the features of a run allow: CorLoc of class scores that are taught by the best proposals.

    .venv/bin/python benchmarks/oracle.py RUN [--set features.dimensions=512]

The proposal of highest IoU with an object of the tag plays the selection of every bag (bags without an IoU above 0.5
teach nothing, and proposals that may not be selected are left out), class scores are learned from it as in re-training,
and every bag is judged by scores of the other folds: the most that re-training can reach with these features, as long
as its scores are linear. Prints a line of JSON with CorLoc @0.5 / @0.7 of the best proposals (recall) and of these
class scores (oracle), of all images, clean and cluttered ones (evidence.py says which are), as means over classes. RUN
needs ground truth; to choose a network, take playing classes.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from evidence import changed, is_cluttered
from torch import Tensor

from pairloc.localization.alternate import Retrain, State
from pairloc.localization.playing import Game
from pairloc.localization.target import fold_of_bags
from pairloc.platform import choose_device
from pairloc.runs.run import open_run


def class_mean(overlap: list[Tensor], chosen: list[Tensor]) -> list[float]:
    """Mean over classes of the share of bags whose IoU (M,) is above 0.5 and above 0.7, in percent."""
    parts = [values[rows] for values, rows in zip(overlap, chosen, strict=True) if rows.any()]
    return [round(100 * sum(float((part > at).double().mean()) for part in parts) / len(parts), 1) for at in (0.5, 0.7)]


@torch.no_grad()
def held_out_scores(game: Game, state: State, label: int) -> Tensor:
    """Class scores (M, B) of a class by the fold that was not trained on a bag."""
    bags = game.target.positives[label]
    features = game.target.class_bags.features(bags)
    by_fold = torch.stack([scores.unary.of_class(features, label) for scores in state.scores])
    return by_fold[state.fold[bags].to(by_fold.device), torch.arange(len(bags), device=by_fold.device)].cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    settings = changed(options.changes)
    device = choose_device(options.device)
    run = open_run(options.run, device)
    assert run.truth is not None
    start = time.perf_counter()
    game = Game.of(run.target_bags, run.truth, run.learned, settings, device=device, memory=run.memory)
    target = game.target
    best = [overlap.max(dim=1) for overlap in game.overlap]
    state = State(
        selection=tuple(entry.indices for entry in best),
        gaps=tuple(torch.zeros(len(entry.values)) for entry in best),
        fold=fold_of_bags(target, settings.folds, settings.seed),
        probability=tuple((entry.values > 0.5).float() for entry in best),
    )
    task = Retrain(target, settings, settings.energy, state, 1)
    state = replace(state, scores=tuple(task(fold)[0] for fold in range(settings.folds)))
    found = []
    for label, overlap in enumerate(game.overlap):
        scores = held_out_scores(game, state, label).masked_fill(overlap < 0, -torch.inf)
        found.append(overlap.gather(1, scores.argmax(dim=1, keepdim=True))[:, 0])
    cluttered = torch.from_numpy(is_cluttered(run))
    row: dict[str, Any] = {"run": str(options.run), "set": options.changes}
    for name, mask in (("all", torch.ones_like(cluttered)), ("clean", ~cluttered), ("cluttered", cluttered)):
        rows = [mask[bags] for bags in target.positives]
        if any(part.any() for part in rows):
            row[f"recall, {name}"] = class_mean([entry.values for entry in best], rows)
            row[f"oracle, {name}"] = class_mean(found, rows)
    print(json.dumps(row | {"seconds": round(time.perf_counter() - start)}), flush=True)


if __name__ == "__main__":
    main()
