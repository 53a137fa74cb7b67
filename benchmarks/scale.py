"""Benchmark re-localization, evidence and re-training at the size of ILSVRC and parts of it, on random bags.

    PYTHONPATH=src python3 benchmarks/scale.py [--device cuda] [--sizes 0.01 0.1 1] [--proposals 300] [--kind cosine]

100 classes of 650 bags (times the size) of 300 proposals; each bag contains one planted object of its class. Features
are in host memory in half precision. The benchmark times the warm-up re-localization, transfer to the device included
(mini-problems of K = 8 bags by TRW-S, then at most 2 epochs of ICM), and with the bags on the device the evidence terms
of all classes (with random probabilities of 63 known classes) and one round of re-training for 10 folds. The weights of
the transfer scores are set by hand to detect the planted objects. Prints a table and JSON.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch
from torch import Tensor

from pairloc.bags.reduction import Reduction
from pairloc.bags.tensors import Bags
from pairloc.inference import ClassProblem
from pairloc.localization.class_view import ClassView
from pairloc.localization.evidence import lasting_terms
from pairloc.localization.functions import TransferScores
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Target, fold_of_bags
from pairloc.scores.cosine import CosineScores
from pairloc.scores.pairs import PairScorer
from pairloc.scores.relation import RelationScores
from pairloc.settings import FeatureSettings, LocalizationSettings, PairSettings, TransferSettings

CLASSES, BAGS, K, FOLDS = 100, 650, 8, 10
KNOWN = 63  # known classes
SIGNATURE = 16  # dimensions that distinguish classes, followed by as many that distinguish objects from noise
LIMIT = 1360e6  # ordered pairs/s at d = 1536: the special-function units compute two tanh per dimension


class Clock:
    """Measures the seconds of every stage."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds = device, dict[str, float]()
        self._last = self._now()

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def lap(self, stage: str) -> None:
        """Add the time since the last call to a stage."""
        now = self._now()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.01, 0.1, 1.0])
    parser.add_argument("--proposals", type=int, default=300)
    parser.add_argument("--d", type=int, default=1536)
    parser.add_argument("--classes", type=int, default=CLASSES)
    parser.add_argument("--kind", choices=("relation", "cosine"), default="relation", help="pair scores")
    parser.add_argument("--steps", type=int, default=200, help="steps of re-training; 0 skips it")
    parser.add_argument("--pairs", type=int, default=1024)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    transfer = planted_scores(arguments.d, arguments.device, arguments.kind)
    rows = []
    for size in arguments.sizes:
        row = measure(max(2, round(BAGS * size)), transfer, arguments)
        rows.append(row)
        print(as_text(row), flush=True)
    print(json.dumps(rows))


def measure(bags: int, transfer: TransferScores, arguments: argparse.Namespace) -> dict[str, object]:
    """Time the warm-up and re-training with `bags` bags per class."""
    device, b, d = arguments.device, arguments.proposals, arguments.d
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    host, objects = [], []
    start = time.perf_counter()
    for label in range(arguments.classes):
        features, planted_at = planted(bags, b, d, label, device)
        host.append(features.half().cpu())
        objects.append(planted_at.cpu())
    print(f"made {bags * arguments.classes:,} bags in {time.perf_counter() - start:.0f} s", flush=True)
    pairs, correct, changes = {"mini-problems": 0, "ICM": 0}, 0, []
    selection = []
    with ThreadPoolExecutor(1) as reader:  # copies the next class while this one is solved
        clock = Clock(device)
        next_class = reader.submit(host[0].to, device)
        for label in range(arguments.classes):
            features = next_class.result().float()
            clock.lap("waiting for bags")
            if label + 1 < arguments.classes:
                next_class = reader.submit(host[label + 1].to, device)
            unary = transfer.unary.of_class(features)
            scores = PairScorer(transfer.relation, features)
            del features
            clock.lap("projection")
            solution = ClassProblem(unary, scores).solve(k=K, epochs=2, seed=label)
            clock.lap("mini-problems and ICM")
            initial, *steps = solution.history
            initial_sums = 2 * unary.numel() * bags  # pair scores of the sums that ICM starts from
            pairs["mini-problems"] += initial.pair_scores - initial_sums
            pairs["ICM"] += initial_sums + sum(step.pair_scores for step in steps)
            changes.append(sum(step.changed for step in steps))
            selection.append(solution.selection.cpu())
            correct += int((selection[-1] == objects[label]).sum())
    warm_up, bytes_ = dict(clock.seconds), bags * arguments.classes * b * d * 2
    print(f"{bags * arguments.classes:,} bags: warm-up {sum(warm_up.values()):.1f} s, {warm_up}", flush=True)
    warm_up_peak = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else float("nan")
    target = target_of(host, device)
    terms = evidence(target, transfer, device)
    print(f"evidence {terms:.1f} s", flush=True)
    training, folds = retraining(target, selection, device, arguments) if arguments.steps else (0.0, 0.0)
    peak = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else float("nan")
    return {
        "bags": bags * arguments.classes, "proposals": b, "d": d, "found": correct / (bags * arguments.classes),
        "seconds": warm_up, "warm-up": sum(warm_up.values()), "evidence": terms, "pairs": pairs,
        "changes a class": sum(changes) / len(changes), "GB": bytes_ / 1e9,
        "GB/s": bytes_ / 1e9 / sum(warm_up.values()), "re-training": training, "seconds a fold": folds,
        "peak GPU GB of the warm-up": warm_up_peak, "peak GPU GB": peak,
    }  # fmt: skip


def target_of(host: list[Tensor], device: str) -> Target:
    """All bags on the device, with random boxes and probabilities of known classes."""
    m, (b, d) = len(host[0]), host[0].shape[1:]
    dtype = torch.float16 if device == "cuda" else torch.float32
    features = torch.empty(m * len(host), b, d, device=device, dtype=dtype)
    for label, part in enumerate(host):
        features[label * m : (label + 1) * m] = part.to(device, dtype, non_blocking=True)
    count = len(features)
    corner = torch.rand(count, b, 2, device=device) * 50
    boxes = torch.cat([corner, corner + 10 + torch.rand(count, b, 2, device=device) * 40], dim=2)
    bags = Bags.of_tensors(
        features, boxes, torch.ones(count, b, dtype=torch.bool, device=device), torch.zeros(count, b, device=device)
    )
    classes = len(host)
    tagged = torch.zeros(count, classes, dtype=torch.bool)
    tagged[torch.arange(count), torch.arange(count) // m] = True
    positives = tuple(torch.arange(label * m, (label + 1) * m) for label in range(classes))
    known = torch.rand(count, b, KNOWN, device=device, dtype=dtype) / KNOWN
    return Target(bags, tuple(map(str, range(classes))), positives, tagged, lambda: bags, known)


def evidence(target: Target, transfer: TransferScores, device: str) -> float:
    """Seconds for the evidence terms of all classes."""
    clock, settings = Clock(device), LocalizationSettings()
    for label in range(len(target.classes)):
        lasting_terms(ClassView(target, transfer, label, settings))
    clock.lap("terms")
    return clock.seconds["terms"]


def retraining(
    target: Target, selection: list[Tensor], device: str, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Seconds of one round of re-training, for all folds and per fold."""
    clock = Clock(device)
    settings = LocalizationSettings.model_validate(
        {
            "folds": FOLDS,
            "energy": {"lambda1": 0.5, "lambda2": 0.5},
            "unary": {"fit": "sampled"},
            "pairs": {"kind": "relation"},
            "training": {"steps": arguments.steps, "pairs": arguments.pairs},
        }
    )
    fold = fold_of_bags(target, FOLDS, 0)
    clock.lap("set up")
    for held_out in range(FOLDS):
        retrain(target, tuple(selection), settings, settings.energy, allowed=fold != held_out, seed=held_out)
        clock.lap("folds")
    return sum(clock.seconds.values()), clock.seconds["folds"] / FOLDS


def planted(bags: int, proposals: int, d: int, label: int, device: str) -> tuple[Tensor, Tensor]:
    """Random features (M, B, d) with an object of the class in every bag, and the index (M,) of its proposal."""
    generator = torch.Generator(device).manual_seed(label)
    features = torch.randn(bags, proposals, d, generator=generator, device=device)
    signature = 3.0 * (2 * torch.randint(2, (SIGNATURE,), generator=generator, device=device) - 1)  # of this class
    planted_at = torch.randint(proposals, (bags,), generator=generator, device=device)
    rows = torch.arange(bags, device=device)
    features[rows, planted_at, :SIGNATURE] += signature
    features[rows, planted_at, SIGNATURE : 2 * SIGNATURE] += 1.0  # objects of any class
    return features, planted_at


@torch.no_grad()
def planted_scores(d: int, device: str, kind: Literal["relation", "cosine"]) -> TransferScores:
    """Transfer scores with hand-set weights; a pair scores high if the signatures of its objects have equal signs."""
    reduction = Reduction(torch.zeros(d), torch.eye(d))
    plain = FeatureSettings(kind="transfer", dimensions=0, geometry=False)
    scores = TransferScores(reduction, TransferSettings(features=plain, pairs=PairSettings(kind=kind)))
    for parameter in scores.parameters():
        parameter.zero_()
    scores.unary.linear.weight[0, SIGNATURE : 2 * SIGNATURE] = 0.5
    if isinstance(scores.relation, CosineScores):
        scores.relation.embedding.weight[:SIGNATURE, :SIGNATURE] = torch.eye(SIGNATURE)
        scores.relation.score.weight.fill_(10.0)
        return scores.to(device).eval()
    assert isinstance(scores.relation, RelationScores)
    dimension = torch.arange(SIGNATURE)
    for first, sign in ((2 * SIGNATURE, 1.0), (3 * SIGNATURE, -1.0)):  # units for "both positive" and "both negative"
        unit = first + dimension
        for offset in (0, d):  # of the features of either proposal
            scores.relation.tanh.weight[unit, offset + dimension] = sign
            scores.relation.gate.weight[unit, offset + dimension] = sign
        scores.relation.tanh.bias[unit] = scores.relation.gate.bias[unit] = -4.5
        scores.relation.score.weight[0, unit] = 1.0
    return scores.to(device).eval()


def as_text(row: dict[str, object]) -> str:
    seconds, pairs = row["seconds"], row["pairs"]
    assert isinstance(seconds, dict)
    assert isinstance(pairs, dict)
    lines = [f"{row['bags']:,} bags of {row['proposals']} proposals, d = {row['d']}; objects found {row['found']:.3f}"]
    lines += [f"  {stage:22} {value:8.2f} s" for stage, value in seconds.items()]
    lines += [f"  pair scores of {stage:14} {count / 1e9:8.2f} G" for stage, count in pairs.items()]
    rate = sum(pairs.values()) / max(seconds["mini-problems and ICM"], 1e-9)
    lines.append(f"  {rate / 1e6:.0f} M pair scores/s, {rate / LIMIT:.0%} of the limit for pair scores alone")
    lines.append(f"  {row['changes a class']:.0f} changes per class")
    lines.append(f"  {'warm-up':22} {row['warm-up']:8.2f} s, {row['GB']:.2f} GB of features, ")
    lines[-1] += f"{row['GB/s']:.2f} GB/s; peak GPU memory {row['peak GPU GB of the warm-up']:.1f} GB"
    lines.append(f"  {'evidence':22} {row['evidence']:8.2f} s")
    lines.append(f"  {'re-training':22} {row['re-training']:8.2f} s, {row['seconds a fold']:.2f} s per fold; ")
    lines[-1] += f"peak GPU memory {row['peak GPU GB']:.1f} GB"
    return "\n".join(lines)


if __name__ == "__main__":
    main()
