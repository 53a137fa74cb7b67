"""Benchmark re-training at the size of ILSVRC: bag visits per second, with the bags already on the device.

    PYTHONPATH=src python3 benchmarks/learning.py [--device cuda] [--bags 65000] [--proposals 300] [--d 1536]

100 classes, 10 sampled proposals per bag, unary and pair class scores. Prints a table and JSON.
"""

import argparse
import json
import time

import torch

from pairloc.bags.tensors import Bags
from pairloc.localization.retrain import retrain
from pairloc.localization.target import Target
from pairloc.settings import LocalizationSettings

CLASSES = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bags", type=int, default=65_000)
    parser.add_argument("--proposals", type=int, default=300)
    parser.add_argument("--d", type=int, default=1536)
    parser.add_argument("--pairs", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    target = random_target(arguments.bags, arguments.proposals, arguments.d, arguments.device)
    selection = tuple(torch.zeros(len(bags), dtype=torch.int64) for bags in target.positives)
    rows = []
    for pairs in arguments.pairs:
        for kind in ("full", "unary"):
            warm_up, settings = (sampled_settings(pairs, steps) for steps in (5, arguments.steps))
            energy = settings.energy if kind == "full" else settings.energy.without_pairs()
            retrain(target, selection, warm_up, energy)
            start = time.perf_counter()
            _, curve = retrain(target, selection, settings, energy)
            if arguments.device == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start
            visits = 2 * pairs * curve[-1]["step"] / seconds  # early stopping may end it before `steps`
            rows.append({"method": kind, "pairs a step": pairs, "bag visits/s": visits, "seconds": seconds})
            print(f"{kind:6} {pairs:6} pairs of bags a step: {visits:12,.0f} bag visits/s", flush=True)
    if arguments.device == "cuda":
        print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
    print(json.dumps(rows))


def sampled_settings(pairs: int, steps: int) -> LocalizationSettings:
    """Settings: the paper's relation network, unary scores by gradient descent, and no held-out bags."""
    return LocalizationSettings.model_validate(
        {
            "energy": {"lambda1": 0.5, "lambda2": 0.5},
            "unary": {"fit": "sampled"},
            "pairs": {"kind": "relation"},
            "training": {"pairs": pairs, "steps": steps, "held_out": 0.0},
        }
    )


def random_target(count: int, size: int, d: int, device: str) -> Target:
    """A target of random features; bag i has the tag i % CLASSES."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    features = torch.empty(count, size, d, device=device, dtype=dtype)
    for rows in torch.split(torch.arange(count), 1000):
        features[rows] = torch.randn(len(rows), size, d, device=device, dtype=dtype)
    corner = torch.rand(count, size, 2, device=device) * 50
    boxes = torch.cat([corner, corner + 10 + torch.rand(count, size, 2, device=device) * 40], dim=2)
    valid = torch.ones(count, size, dtype=torch.bool, device=device)
    bags = Bags.of_tensors(features, boxes, valid, torch.zeros(count, size, device=device))
    tagged = torch.zeros(count, CLASSES, dtype=torch.bool)
    tagged[torch.arange(count), torch.arange(count) % CLASSES] = True
    positives = tuple(torch.nonzero(column)[:, 0] for column in tagged.T)
    return Target(bags, tuple(str(c) for c in range(CLASSES)), positives, tagged, lambda: bags)


if __name__ == "__main__":
    main()
