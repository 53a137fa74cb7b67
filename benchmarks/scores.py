"""Benchmark pair scores: speed and error of every variant, and of the naive one that concatenates features.

    .venv/bin/python benchmarks/scores.py                     (CPU)
    PYTHONPATH=src python3 benchmarks/scores.py               (GPU; needs only torch, triton and numpy)

Prints a table and the same as JSON. Pair scores are ordered: s(e, e') and s(e', e) count as two.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from pairloc.scores import PairScorer, RelationScores
from pairloc.scores.eager import Eager

LIMIT = 132 * 16 * 1.98e9 / 2  # H200: special functions per second, of which a pair needs two per dimension
Row = dict[str, object]


def naive(relation: RelationScores, features: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Score every pair by concatenating its features: the sum of both orders (n, B, B), one pair of bags at a time."""
    blocks = []
    for i, j in zip(left.tolist(), right.tolist(), strict=True):
        e, f = features[i], features[j]
        b, d = e.shape
        first, second = e[:, None].expand(b, b, d), f[None].expand(b, b, d)
        block = torch.zeros(b, b, device=e.device)
        for one, other in ((first, second), (second, first)):
            both = torch.cat([one, other], dim=2)  # (B, B, 2 d)
            embedded = torch.tanh(relation.tanh(both)) * torch.sigmoid(relation.gate(both)) + (one + other) / 2
            block += relation.score(embedded)[..., 0]
        blocks.append(block)
    return torch.stack(blocks)


def seconds(call: Callable[[], object], device: str, repeat: int = 5) -> float:
    """Median time of a call in seconds, after one warm-up call."""
    times = []
    for _ in range(repeat + 1):
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[repeat // 2]


@torch.no_grad()
def measure(device: str, d: int, b: int, bags: int, blocks: int, backends: list[str]) -> list[Row]:
    """Measure all variants on one shape."""
    torch.manual_seed(0)
    relation = RelationScores(d).to(device).eval()
    features = torch.randn(bags, b, d, device=device)
    left = torch.randint(0, bags, (blocks,), device=device)
    right = (left + 1) % bags
    exact = Eager(double(relation).project(features.double()), 1 << 30).block(left[:2], right[:2])
    rows: list[Row] = []

    def add(variant: str, call: Callable[[Tensor, Tensor], Tensor], count: int) -> None:
        error = float((call(left[:2], right[:2]).double() - exact).abs().max() / exact.std())
        rate = 2 * count * b * b / seconds(lambda: call(left[:count], right[:count]), device) / 1e6
        row: Row = {"device": device, "d": d, "B": b, "variant": variant, "million pairs/s": rate, "error/std": error}
        if device == "cuda":
            row["of the limit"] = rate * 1e6 / (LIMIT / d)
        rows.append(row)
        of_limit = f"{100 * rate * 1e6 / (LIMIT / d):6.1f}%" if device == "cuda" else ""
        print(f"{device:5} {d:5} {b:4} {variant:24} {rate:10.2f} {error:10.1e} {of_limit}", flush=True)

    for name, tf32 in (("concatenate, fp32", False), *((("concatenate, tf32", True),) if device == "cuda" else ())):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        add(name, lambda i, j: naive(relation, features, i, j), 2)
    torch.backends.cuda.matmul.allow_tf32 = False
    for backend in backends:
        scorer = PairScorer(relation, features, backend=backend)  # type: ignore[arg-type]
        add(f"factored, {backend}", scorer.block, blocks if backend == "triton" else max(2, blocks // 8))
    if backends[-1] == "triton":
        rows += measure_against(scorer, bags, b, d)
    return rows


def measure_against(scorer: PairScorer, bags: int, b: int, d: int) -> list[Row]:
    """Measure all proposals of all bags against a whole selection (ICM's initial sums) and against one change of it."""
    rows: list[Row] = []
    everything = torch.arange(bags, device="cuda")
    for m, what in ((bags, "a selection"), (2, "one change")):
        chosen_bags = everything[:m]
        chosen, weights = torch.zeros_like(chosen_bags), torch.ones(m, device="cuda")
        time_ = seconds(lambda c=chosen_bags, p=chosen, w=weights: scorer.against(everything, c, p, w), "cuda", 20)  # type: ignore[misc]
        rate = 2 * bags * b * m / time_ / 1e6
        of_limit = rate * 1e6 / (LIMIT / d)
        rows.append({"device": "cuda", "d": d, "B": b, "variant": f"against {what}", "million pairs/s": rate})
        print(
            f"cuda  {d:5} {b:4} {f'triton, against {what}':24} {rate:10.2f} {'':10} {100 * of_limit:6.1f}%", flush=True
        )
    return rows


def double(relation: RelationScores) -> RelationScores:
    """Copy the network in double precision."""
    copy = RelationScores(relation.score.in_features).double().to(relation.score.weight.device).eval()
    copy.load_state_dict(relation.state_dict())
    return copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="run only the smallest sizes on the CPU, as a smoke test")
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile, which takes a minute")
    arguments = parser.parse_args()
    compiled = [] if arguments.no_compile or arguments.tiny else ["compiled"]
    print(f"{'':5} {'d':>5} {'B':>4} {'variant':24} {'M pairs/s':>10} {'error/std':>10}  of the limit")
    if arguments.tiny:
        rows = measure("cpu", 8, 6, 4, 4, ["eager"])
    elif torch.cuda.is_available():
        rows = measure("cuda", 1536, 300, 256, 256, ["eager", *compiled, "triton"])
        rows += measure("cuda", 1024, 100, 256, 2048, ["eager", *compiled, "triton"])
    else:
        rows = measure("cpu", 256, 64, 16, 32, ["eager", *compiled])
        fastest = max(float(str(row["million pairs/s"])) for row in rows)
        print(f"fastest / concatenation: {fastest / float(str(rows[0]['million pairs/s'])):.1f}")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
