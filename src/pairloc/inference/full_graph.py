"""Mean field and block ICM on the graph of all bags of a class: the algorithms that the paper compares ICM with.

A sweep of mean field computes all O(M^2 B^2) pair scores; one of block ICM computes O(M B^2) more than ICM. Use both
only on small classes.
"""

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pairloc.inference.class_icm import Step, selected_energy

if TYPE_CHECKING:
    from pairloc.inference.class_problem import ClassProblem

_FINAL_TEMPERATURE = 1e-3  # final temperature as a fraction of the initial one


def class_mean_field(problem: "ClassProblem", iterations: int = 10) -> tuple[Step, ...]:
    """Give every bag a distribution over its proposals and update the bags in turn while the temperature falls.

    Returns the state after every sweep; its selection is the most likely proposal of every bag. The seconds do not
    include measuring the energy.
    """
    unary, weight = problem.anchored().double(), problem.weight()  # (M, B)
    m, b = unary.shape
    bags = problem.bags.repeat_interleave(b)  # (M B,)
    proposals = torch.arange(b, device=bags.device).repeat(m)
    valid = torch.isfinite(unary)
    q = valid / valid.sum(dim=1, keepdim=True)  # (M, B)
    history, seconds, initial = [], 0.0, 0.0
    for iteration in range(iterations):
        began, previous = time.perf_counter(), q.argmax(dim=1)
        for row in range(m):
            expected = problem.pairs.against(problem.bags[row : row + 1], bags, proposals, q.flatten())[0]  # (B,)
            field = unary[row] + weight * expected
            if not initial:
                initial = float(field[valid[row]].abs().max()) + 1e-6
            temperature = initial * _FINAL_TEMPERATURE ** (iteration / max(iterations - 1, 1))
            q[row] = torch.softmax(field / temperature, dim=0)
        selection = q.argmax(dim=1)
        seconds += time.perf_counter() - began
        changed = int((selection != previous).sum())
        history.append(
            Step(iteration + 1, problem.energy(selection), changed, 2 * m * (m - 1) * b * b, seconds, selection.cpu())
        )
    problem.computed = 0
    return tuple(history)


def class_block_icm(problem: "ClassProblem", start: Tensor, epochs: int = 10) -> tuple[Step, ...]:
    """Visit the bags in pairs, giving both the best pair of proposals, until an epoch changes nothing.

    Every epoch pairs the bags differently. `start` (M,) is the initial selection; its state is the first of the result.
    """
    began = time.perf_counter()
    unary, weight = problem.anchored().double(), problem.weight()  # (M, B)
    m, b = unary.shape
    rows = torch.arange(m, device=unary.device)
    selection = start.to(unary.device).clone() if m > 1 else unary.argmax(dim=1)
    problem.computed = 0
    sums = problem.against(rows, selection, torch.ones(m, device=unary.device))  # (M, B)
    history: list[Step] = []

    def record(epoch: int, changed: int) -> None:
        energy = selected_energy(unary, sums, selection, weight)
        computed, problem.computed = problem.computed, 0
        history.append(Step(epoch, energy, changed, computed, time.perf_counter() - began, selection.cpu().clone()))

    record(0, 0)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(1, epochs + 1):
        order = torch.randperm(m, generator=generator).to(unary.device)
        if m == 1:
            order = order[:0]  # nothing to compare with
        left, right = (
            order[::2],
            torch.cat([order[1::2], order[: len(order) % 2]]),
        )  # with an odd number of bags, the last is paired with the first
        blocks = problem.pairs.block(problem.bags[left], problem.bags[right]).double()  # (m / 2, B, B)
        problem.computed += 2 * blocks.numel()
        changed = 0
        for i, j, block in zip(left.tolist(), right.tolist(), blocks, strict=True):
            old = (int(selection[i]), int(selection[j]))
            score_i = unary[i] + weight * (sums[i] - block[:, old[1]])  # given all other bags: (B,)
            score_j = unary[j] + weight * (sums[j] - block[old[0]])
            joint = score_i[:, None] + score_j + weight * block  # (B, B)
            best = int(joint.argmax())
            new = (best // b, best % b)
            if joint[new] <= joint[old] + 1e-9 * (1 + float(joint[old].abs())):
                continue
            for bag, before, after in zip((i, j), old, new, strict=True):
                if before != after:
                    signs = torch.tensor([1.0, -1.0], device=unary.device)
                    bag_twice = torch.tensor([bag, bag], device=unary.device)
                    sums += problem.against(bag_twice, torch.tensor([after, before], device=unary.device), signs)
                    selection[bag] = after
                    changed += 1
        record(epoch, changed)
        if not changed:
            break
    return tuple(history)
