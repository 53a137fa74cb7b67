"""Re-localization and re-training at ILSVRC's shape, and at a tenth and a hundredth of it, on made-up bags.

    PYTHONPATH=src python3 benchmarks/scale.py [--device cuda] [--sizes 0.01 0.1 1] [--proposals 300]

100 classes of 650 bags (times the size) of 300 proposals, each bag with one planted object of its class; features lie
in host memory in half precision. Timed: the whole warm-up re-localization from there to the selection (mini-problems of
K = 8 bags by TRW-S, then at most 2 epochs of ICM), and one round of re-training for 10 folds, with the bags on the
device. The transfer scores are made by hand to know how objects were planted. Prints a table and JSON.
"""

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from pairloc.bags.reduction import Reduction
from pairloc.bags.tensors import Bags
from pairloc.inference import ClassProblem
from pairloc.localization.functions import TransferScores
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Target, fold_of_bags
from pairloc.scores.pairs import PairScorer
from pairloc.scores.relation import RelationScores
from pairloc.settings import FeatureSettings, LocalizationSettings, PairSettings, TransferSettings

CLASSES, BAGS, K, FOLDS = 100, 650, 8, 10
LOOKS = 16  # dimensions that tell classes apart, and as many that tell objects from noise
LIMIT = 1360e6  # ordered pairs/s at d = 1536: two tanh a dimension on the special-function units


class Clock:
    """Seconds by stage."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds = device, dict[str, float]()
        self._last = self._now()

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def lap(self, stage: str) -> None:
        """Count the time since the last call for a stage."""
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
    parser.add_argument("--steps", type=int, default=200, help="of re-training; 0 leaves it out")
    parser.add_argument("--pairs", type=int, default=1024)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    transfer = known(arguments.d, arguments.device)
    rows = []
    for size in arguments.sizes:
        row = measure(max(2, round(BAGS * size)), transfer, arguments)
        rows.append(row)
        print(as_text(row), flush=True)
    print(json.dumps(rows))


def measure(bags: int, transfer: TransferScores, arguments: argparse.Namespace) -> dict[str, object]:
    device, b, d = arguments.device, arguments.proposals, arguments.d
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    host, shown = [], []
    began = time.perf_counter()
    for label in range(arguments.classes):
        features, where = planted(bags, b, d, label, device)
        host.append(features.half().cpu())
        shown.append(where.cpu())
    print(f"made {bags * arguments.classes:,} bags in {time.perf_counter() - began:.0f} s", flush=True)
    pairs, right, epochs = {"mini-problems": 0, "ICM": 0}, 0, []
    selection = []
    with ThreadPoolExecutor(1) as reader:  # the next class travels while this one is worked on
        clock = Clock(device)
        coming = reader.submit(host[0].to, device)
        for label in range(arguments.classes):
            features = coming.result().float()
            clock.lap("waiting for bags")
            if label + 1 < arguments.classes:
                coming = reader.submit(host[label + 1].to, device)
            unary = transfer.unary.of_class(features)
            scores = PairScorer(transfer.relation, features)
            del features
            clock.lap("projection")
            found = ClassProblem(unary, scores).solve(k=K, epochs=2, seed=label)
            clock.lap("mini-problems and ICM")
            begun, *steps = found.history
            first = 2 * unary.numel() * bags  # the sums ICM starts from
            pairs["mini-problems"] += begun.pair_scores - first
            pairs["ICM"] += first + sum(step.pair_scores for step in steps)
            epochs.append(sum(step.changed for step in steps))
            selection.append(found.selection.cpu())
            right += int((selection[-1] == shown[label]).sum())
    warm, bytes_ = dict(clock.seconds), bags * arguments.classes * b * d * 2
    print(f"{bags * arguments.classes:,} bags: warm-up {sum(warm.values()):.1f} s, {warm}", flush=True)
    relocalized = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else float("nan")
    training, folds = retraining(host, selection, device, arguments) if arguments.steps else (0.0, 0.0)
    peak = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else float("nan")
    return {
        "bags": bags * arguments.classes, "proposals": b, "d": d, "found": right / (bags * arguments.classes),
        "seconds": warm, "warm-up": sum(warm.values()), "pairs": pairs, "changes a class": sum(epochs) / len(epochs),
        "GB": bytes_ / 1e9, "GB/s": bytes_ / 1e9 / sum(warm.values()), "re-training": training, "seconds a fold": folds,
        "peak GPU GB of the warm-up": relocalized, "peak GPU GB": peak,
    }  # fmt: skip


def retraining(
    host: list[Tensor], selection: list[Tensor], device: str, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Seconds of a round of re-training for all folds, and of one."""
    clock = Clock(device)
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
    target = Target(bags, tuple(map(str, range(classes))), positives, tagged, lambda: bags)
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
    for held in range(FOLDS):
        retrain(target, tuple(selection), settings, settings.energy, allowed=fold != held, seed=held)
        clock.lap("folds")
    return sum(clock.seconds.values()), clock.seconds["folds"] / FOLDS


def planted(bags: int, proposals: int, d: int, label: int, device: str) -> tuple[Tensor, Tensor]:
    """Noise (M, B, d) with an object of a class at a known proposal (M,) of every bag."""
    generator = torch.Generator(device).manual_seed(label)
    features = torch.randn(bags, proposals, d, generator=generator, device=device)
    looks = 3.0 * (2 * torch.randint(2, (LOOKS,), generator=generator, device=device) - 1)  # of this class
    where = torch.randint(proposals, (bags,), generator=generator, device=device)
    rows = torch.arange(bags, device=device)
    features[rows, where, :LOOKS] += looks
    features[rows, where, LOOKS : 2 * LOOKS] += 1.0  # of any object
    return features, where


@torch.no_grad()
def known(d: int, device: str) -> TransferScores:
    """Transfer scores that know how objects were planted: two look alike where their looks have the same signs."""
    reduction = Reduction(torch.zeros(d), torch.eye(d))
    plain = FeatureSettings(kind="transfer", dimensions=0, geometry=False)
    scores = TransferScores(reduction, TransferSettings(features=plain, pairs=PairSettings(kind="relation")))
    for parameter in scores.parameters():
        parameter.zero_()
    assert isinstance(scores.relation, RelationScores)
    scores.unary.linear.weight[0, LOOKS : 2 * LOOKS] = 0.5
    looks = torch.arange(LOOKS)
    for first, sign in ((2 * LOOKS, 1.0), (3 * LOOKS, -1.0)):  # a unit for "both plus", one for "both minus"
        for side in (0, d):
            scores.relation.tanh.weight[first + looks, side + looks] = sign
            scores.relation.gate.weight[first + looks, side + looks] = sign
        scores.relation.tanh.bias[first + looks] = scores.relation.gate.bias[first + looks] = -4.5
        scores.relation.score.weight[0, first + looks] = 1.0
    return scores.to(device).eval()


def as_text(row: dict[str, object]) -> str:
    seconds, pairs = row["seconds"], row["pairs"]
    assert isinstance(seconds, dict)
    assert isinstance(pairs, dict)
    lines = [f"{row['bags']:,} bags of {row['proposals']} proposals, d = {row['d']}; objects found {row['found']:.3f}"]
    lines += [f"  {stage:22} {value:8.2f} s" for stage, value in seconds.items()]
    lines += [f"  pair scores of {stage:14} {count / 1e9:8.2f} G" for stage, count in pairs.items()]
    rate = sum(pairs.values()) / max(seconds["mini-problems and ICM"], 1e-9)
    lines.append(f"  {rate / 1e6:.0f} M pair scores/s, {rate / LIMIT:.0%} of the limit of pair scores alone")
    lines.append(f"  {row['changes a class']:.0f} changes a class")
    lines.append(f"  {'warm-up':22} {row['warm-up']:8.2f} s, {row['GB']:.2f} GB of features, ")
    lines[-1] += f"{row['GB/s']:.2f} GB/s; peak GPU memory {row['peak GPU GB of the warm-up']:.1f} GB"
    lines.append(f"  {'re-training':22} {row['re-training']:8.2f} s, {row['seconds a fold']:.2f} s a fold; ")
    lines[-1] += f"peak GPU memory {row['peak GPU GB']:.1f} GB"
    return "\n".join(lines)


if __name__ == "__main__":
    main()
