"""Benchmark inference: speed of TRW-S and ICM, and every solver against the optimum.

    .venv/bin/python benchmarks/inference.py [--figure docs/figures/inference.png]

Needs only torch and numpy (and matplotlib for the figure). Prints tables and the same as JSON; a GPU is measured too.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from pairloc.inference import SOLVERS, ClassProblem, Problem, Solution, solve, solve_batch
from pairloc.inference.batch import Batch, Options
from pairloc.inference.planted import planted_bags, planted_problem
from pairloc.inference.trws import trws

T = TypeVar("T")
CPP_SECONDS = 0.047  # Kolmogorov's C++, one core, double precision: 100 iterations of K=8, B=100
SIZES = (
    (4, 20, 0.8),
    (8, 20, 0.8),
    (8, 100, 0.6),
    (8, 100, 0.8),
    (16, 50, 0.8),
    (8, 100, 1.2),
)  # planted problems: nodes, labels, spread
COPY_RATE = 4.15e12  # bytes/s, an H200 copying within its memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", type=Path, help="plot energy against time into this file")
    parser.add_argument("--tiny", action="store_true", help="run only the smallest sizes, as a smoke test")
    arguments = parser.parse_args()
    if arguments.tiny:
        print(json.dumps({"epochs": epochs(20, 10), "solvers": solvers(SIZES[:1])}).replace("Infinity", "null"))
        return
    results: dict[str, object] = {"threads": torch.get_num_threads(), "cpu": cpu_speed()}
    if torch.cuda.is_available():
        results["gpu"] = gpu_speed()
    results["epochs"] = epochs(600, 100)
    results["solvers"] = solvers(SIZES)
    print(json.dumps(results).replace("Infinity", "null"))
    if arguments.figure:
        draw(arguments.figure)


def random_batch(problems: int, nodes: int, labels: int, device: str, dtype: torch.dtype = torch.float32) -> Batch:
    """Random potentials on complete graphs; the time of an iteration does not depend on their values."""
    generator = torch.Generator(device).manual_seed(0)
    edges = tuple(itertools.combinations(range(nodes), 2))
    options = {"generator": generator, "device": device, "dtype": dtype}
    return Batch(
        torch.rand(problems, nodes, labels, **options),  # type: ignore[call-overload]
        edges,
        torch.rand(problems, len(edges), labels, labels, **options),  # type: ignore[call-overload]
    )


def cpu_speed() -> dict[str, float]:
    """Time and accuracy of TRW-S on the CPU: 64 problems of K=8, B=100, 100 iterations."""
    batch = random_batch(64, 8, 100, "cpu")
    options = Options(100, 0.0, torch.Generator())
    seconds = min(timed(lambda: trws(batch, options))[0] for _ in range(3))
    single, double = trws(batch.part(slice(0, 4)), options), trws(batch.part(slice(0, 4)).double(), options)
    row = {
        "seconds": seconds,
        "limit": 3.0,
        "of C++ on one core": seconds / (64 * CPP_SECONDS),
        "bound error": float((single.lower_bound - double.lower_bound).abs().max()),
        "energy error": float((single.energy - double.energy).abs().max()),
    }
    print("TRW-S, 64 problems of K=8, B=100, 100 iterations, float32, on the CPU:")
    print("  " + ", ".join(f"{name} {value:.3g}" for name, value in row.items()))
    return row


def gpu_speed() -> dict[str, object]:
    """Time and accuracy of TRW-S on the GPU: 512 problems of K=8, B=300, 100 iterations; errors against the CPU."""
    device = torch.cuda.get_device_name()
    batch = random_batch(512, 8, 300, "cuda")
    options = Options(100, 0.0, torch.Generator())
    trws(batch, Options(2, 0.0, torch.Generator()))  # compiles the kernel
    seconds = min(timed(lambda: trws(batch, options))[0] for _ in range(3))
    min_bytes = 2 * 100 * batch.pairwise.numel() * 4
    small = batch.part(slice(0, 8))
    fast, plain = trws(small, options), trws(Batch(small.unary.cpu(), small.edges, small.pairwise.cpu()), options)
    double = trws(Batch(small.unary.cpu(), small.edges, small.pairwise.cpu()).double(), options)
    row: dict[str, object] = {
        "device": device,
        "seconds": seconds,
        "limit": 1.0,
        "GB/s": min_bytes / seconds / 1e9,
        "of the copy rate": min_bytes / seconds / COPY_RATE,
        "bound error": float((fast.lower_bound.cpu() - double.lower_bound).abs().max()),
        "energy error to the CPU": float((fast.energy.cpu() - plain.energy).abs().max()),
        "peak GB": torch.cuda.max_memory_allocated() / 1e9,
    }
    print("TRW-S, 512 problems of K=8, B=300, 100 iterations, float32, on the GPU:")
    print(
        "  "
        + ", ".join(f"{name} {value:.3g}" if isinstance(value, float) else str(value) for name, value in row.items())
    )
    return row


class Similarity:
    """Pair scores from features (M, B, d), computed on demand."""

    def __init__(self, features: Tensor) -> None:
        self.features = features

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairScores`."""
        return 8 * self.features[left] @ self.features[right].transpose(1, 2) - 4

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairScores`."""
        scores = 8 * self.features[bags] @ self.features[chosen_bags, chosen].T - 4  # (n, B, m)
        scores = scores * (bags[:, None] != chosen_bags)[:, None]
        return torch.einsum("nbm,m...->...nb", scores, weights.to(scores.dtype))


def epochs(bags: int, proposals: int) -> list[dict[str, object]]:
    """Run ICM over the bags of a class from a random start; the bags that change determine the cost of an epoch."""
    unary, features, _ = planted_bags(bags, proposals, np.random.default_rng(0))
    scores = Similarity(torch.from_numpy(features).float())
    history = ClassProblem(torch.from_numpy(unary).float(), scores, alpha=4.0).solve("random", epochs=20).history
    rows: list[dict[str, object]] = []
    previous = 0.0
    print(f"\nICM, {bags} bags of {proposals} proposals, from a random start:")
    print(f"  {'epoch':>5} {'changed bags':>12} {'pair scores':>14} {'seconds':>8} {'energy':>12}")
    for step in history:
        seconds, previous = step.seconds - previous, step.seconds
        row = asdict(step) | {"seconds": seconds}
        rows.append({name: value for name, value in row.items() if name != "selection"})
        print(f"  {step.epoch:>5} {step.changed:>12} {step.pair_scores:>14,} {seconds:>8.3f} {step.energy:>12.2f}")
    return rows


def solvers(sizes: Sequence[tuple[int, int, float]]) -> list[dict[str, object]]:
    """Run every solver on planted problems of several sizes: mean gaps of energy and bound to the optimum, and time."""
    rows: list[dict[str, object]] = []
    print(
        "\nevery solver on 10 planted problems of each size, against the solution of 'exact' (*: certified for all 10):"
    )
    print(
        f"  {'nodes x labels, spread':24} {'solver':12} {'energy gap':>11} {'bound gap':>10} {'certified':>9} {'ms':>9}"
    )
    for nodes, labels, spread in sizes:
        generator = np.random.default_rng(nodes * labels)
        problems = [planted_problem(nodes, labels, generator, spread=spread)[0] for _ in range(10)]
        optima = [solve(problem, "exact", iterations=500) for problem in problems]
        for solver in SOLVERS:
            seconds, solutions = timed(partial(solve_each, problems, solver))
            row = summary(solutions, optima) | {"ms": 100 * seconds}
            rows.append({"nodes": nodes, "labels": labels, "spread": spread, "solver": solver} | row)
            case = f"{nodes} x {labels}, {spread}{'*' * (row['optima certified'] == 10)}"
            numbers = f"{row['energy gap']:>11.4f} {row['bound gap']:>10.4f} {row['certified']:>9} {row['ms']:>9.2f}"
            print(f"  {case:24}{solver:12} {numbers}")
        batched, _ = timed(partial(solve_batch, problems, "trws"))
        print(f"  {'':24} {'trws, as one batch':46} {100 * batched:>9.2f}")
    return rows


def solve_each(problems: list[Problem], solver: str) -> list[Solution]:
    """Solve the problems one by one."""
    return [solve(problem, solver) for problem in problems]


def summary(solutions: list[Solution], optima: list[Solution]) -> dict[str, float]:
    """Mean gaps and numbers of certified solutions."""
    return {
        "energy gap": statistics.fmean(f.energy - o.energy for f, o in zip(solutions, optima, strict=True)),
        "bound gap": statistics.fmean(o.energy - f.lower_bound for f, o in zip(solutions, optima, strict=True)),
        "certified": sum(f.certified for f in solutions),
        "optima certified": sum(o.certified for o in optima),
    }


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Call a function; return the seconds it took and its result."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def draw(file: Path) -> None:
    """Plot energy and bound against time on a hard problem, on two scales."""
    import matplotlib.pyplot as plt

    problem: Problem = planted_problem(8, 100, np.random.default_rng(11), spread=1.2)[0]
    optimum = solve(problem, "exact", iterations=3000)
    figure, (wide, close) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharex=True)
    for solver in ("trws", "bp", "mean-field", "block-icm", "icm", "unary"):
        solve(problem, solver, iterations=2)  # warm-up
        seconds, solution = timed(partial(solve, problem, solver, iterations=200, tolerance=0))
        times = 1000 * seconds * np.arange(1, len(solution.history) + 1) / len(solution.history)
        for axes in (wide, close):
            (line,) = axes.plot(times, solution.history[:, 1], marker="o", markersize=2.5, label=solver)
            if solver == "trws":
                axes.plot(times, solution.history[:, 0], "--", color=line.get_color(), label="trws, lower bound")
    for axes in (wide, close):
        label = "optimum" if optimum.certified else "best known"
        axes.axhline(optimum.energy, color="black", linewidth=0.8, label=label)
        axes.set(xscale="log", xlabel="milliseconds")
        axes.spines[["top", "right"]].set_visible(False)
    wide.set(ylabel="energy", title="8 bags of 100 proposals, a planted object with a large spread")
    close.set(ylim=(optimum.energy - 3, optimum.energy + 6), title="the same, near the optimum")
    wide.legend(fontsize=8, ncols=2)
    figure.savefig(file, dpi=120)
    print(f"wrote {file}")


if __name__ == "__main__":
    main()
