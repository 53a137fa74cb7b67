"""Compare every GPU code path with its CPU counterpart. CI has no GPU and runs the kernels in Triton's interpreter.

    PYTHONPATH=src python3 benchmarks/gpu_check.py

Needs only torch, triton and numpy. Prints the largest differences; the exit status is 1 if one is too large.
"""

import argparse
import itertools
import sys

import numpy as np
import torch

from pairloc.inference import SOLVERS, ClassProblem, solve_batch
from pairloc.inference.batch import Batch, Options
from pairloc.inference.planted import planted_bags, planted_problem
from pairloc.inference.trws import trws
from pairloc.scores import PAIR_FUNCTIONS, PairScorer, RelationScores


def trws_difference(labels: int) -> float:
    """Largest difference in bounds and energies of TRW-S on random problems with different numbers of labels."""
    generator = torch.Generator().manual_seed(labels)
    edges = tuple(itertools.combinations(range(6), 2))[::2]
    unary = torch.randn(9, 6, labels, generator=generator)
    unary[0, 1, labels // 2 + 1 :] = torch.inf
    pairwise = torch.randn(9, len(edges), labels, labels, generator=generator)
    results = [
        trws(Batch(unary.to(device), edges, pairwise.to(device)), Options(30, 0.0, torch.Generator()))
        for device in ("cpu", "cuda")
    ]
    bounds, energies = ([getattr(r, name).cpu() for r in results] for name in ("lower_bound", "energy"))
    return float(max((bounds[0] - bounds[1]).abs().max(), (energies[0] - energies[1]).abs().max()))


def pair_difference(m: int, b: int, d: int, kind: str) -> float:
    """Largest difference in blocks and sums of pair scores, relative to their standard deviation."""
    torch.manual_seed(m * b * d)
    relation = PAIR_FUNCTIONS[kind](d, 1).eval()
    features = torch.randn(m, b, d)
    left, right = torch.randint(0, m, (7,)), torch.randint(0, m, (7,))
    picks = torch.randint(0, m, (min(m, 50),)), torch.randint(0, b, (min(m, 50),)), torch.randn(min(m, 50))
    results = {}
    for device in ("cpu", "cuda"):
        scorer = PairScorer(relation.to(device), features.to(device))
        block = scorer.block(left.to(device), right.to(device)).cpu()
        few = scorer.against(torch.arange(m, device=device), *(pick[:2].to(device) for pick in picks)).cpu()
        many = scorer.against(torch.arange(m, device=device), *(pick.to(device) for pick in picks)).cpu()
        results[device] = (block, few, many)
    scale = max(float(results["cpu"][0].std()) if results["cpu"][0].numel() > 1 else 1.0, 1e-3)
    pairs = zip(results["cpu"], results["cuda"], strict=True)
    return max(float((a - c).abs().max()) for a, c in pairs) / scale


def solver_difference(solver: str, dtype: torch.dtype) -> float:
    """Largest difference in the energies of a solver on planted problems."""
    generator = np.random.default_rng(0)
    problems = [planted_problem(6, 15, generator)[0] for _ in range(4)]
    solutions = [solve_batch(problems, solver, device=device, dtype=dtype) for device in ("cpu", "cuda")]
    return float(max(abs(a.energy - c.energy) for a, c in zip(*solutions, strict=True)))


def selections_differ() -> float:
    """Fraction of bags for which re-localization selects different proposals on CPU and GPU."""
    unary, features, _ = planted_bags(120, 40, np.random.default_rng(0))
    torch.manual_seed(0)
    relation = RelationScores(features.shape[2]).eval()
    selections = []
    for device in ("cpu", "cuda"):
        scorer = PairScorer(relation.to(device), torch.from_numpy(features).float().to(device))
        scores = torch.from_numpy(unary).float().to(device)
        selections.append(ClassProblem(scores, scorer, alpha=20.0).solve(k=8).selection.cpu())
    return float((selections[0] != selections[1]).double().mean())


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    if not torch.cuda.is_available():
        sys.exit("this machine has no GPU")
    checks = [(f"TRW-S, {labels} labels", trws_difference(labels), 1e-4) for labels in (1, 7, 100, 300)]
    for solver in SOLVERS:
        for dtype in (torch.float32, torch.float64):
            checks.append((f"{solver}, {dtype}", solver_difference(solver, dtype), 1e-3))
    for m, b, d, kind in (
        (3, 1, 1, "relation"),
        (5, 7, 33, "relation"),
        (64, 100, 256, "relation"),
        (9, 65, 100, "cosine"),
    ):
        checks.append((f"pair scores, {m} bags of {b}, d={d}, {kind}", pair_difference(m, b, d, kind), 1e-3))
    checks.append(("re-localization, bags that differ", selections_differ(), 0.02))
    for name, difference, limit in checks:
        print(f"{name:50} {difference:10.2e} {'ok' if difference <= limit else 'TOO LARGE'}")
    sys.exit(any(difference > limit for _, difference, limit in checks))


if __name__ == "__main__":
    main()
