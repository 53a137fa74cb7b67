"""Relation-network pair scores in plain torch: the readable reference, computed in chunks that fit a memory limit."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from pairloc.scores.pair_function import table_of_blocks
from pairloc.scores.relation import Projected


def pair_sum(left: Projected, right: Projected) -> Tensor:
    """s(e, e') of all proposal pairs of n bag pairs: projections (n, L, d) and (n, R, d) -> (n, L, R)."""
    tanh = left.tanh_first[:, :, None] + right.tanh_second[:, None]  # (n, L, R, d)
    gate = left.gate_first[:, :, None] + right.gate_second[:, None]
    # tanh(x) = 2 sigmoid(2x) - 1: on a CPU, torch's sigmoid takes a quarter of the time of its tanh.
    tanh = tanh.mul_(2).sigmoid_().mul_(2).sub_(1)
    gated = tanh.mul_(gate.sigmoid_()) @ left.weight  # (n, L, R)
    return gated + left.linear[:, :, None] + right.linear[:, None] + left.bias


def fused_pair_sum(left: Projected, right: Projected) -> Tensor:
    """`pair_sum` without in-place steps, which torch.compile fuses into one loop."""
    tanh = left.tanh_first[:, :, None] + right.tanh_second[:, None]  # (n, L, R, d)
    gate = left.gate_first[:, :, None] + right.gate_second[:, None]
    gated = (torch.tanh(tanh) * torch.sigmoid(gate) * left.weight).sum(dim=-1)
    return gated + left.linear[:, :, None] + right.linear[:, None] + left.bias


@functools.cache
def compiled_pair_sum() -> Callable[[Projected, Projected], Tensor]:
    """`fused_pair_sum` through torch.compile, which compiles it on its first call."""
    return torch.compile(fused_pair_sum, dynamic=True)


class Eager:
    """Pair scores of M bags of B proposals, computed from their projections."""

    def __init__(self, projected: Projected, memory: int, *, compiled: bool = False) -> None:
        self.projected = projected  # (M, B, d) each
        self.memory = memory
        self.pair_sum = compiled_pair_sum() if compiled else pair_sum

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`."""
        _, b, d = self.projected.tanh_first.shape
        out = self.projected.linear.new_empty(len(left), b, b)
        row_count = self._fitting(b * d)  # part of one block, or several blocks
        bag_count = max(1, row_count // b)
        for first in range(0, len(left), bag_count):
            bags = slice(first, first + bag_count)
            columns = self._bags(right[bags])
            for row in range(0, b, row_count):
                proposals = slice(row, row + row_count)
                rows = self._bags(left[bags], proposals)
                out[bags, proposals] = self.pair_sum(rows, columns) + self.pair_sum(columns, rows).transpose(1, 2)
        return out

    def table(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`."""
        return table_of_blocks(self, left, right)

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairKernel`."""
        _, b, d = self.projected.tanh_first.shape
        total = self.projected.linear.new_zeros(*weights.shape[1:], len(bags), b)
        different = bags[:, None] != chosen_bags  # (n, m)
        chosen_count = max(1, min(len(chosen), self._fitting(b * d)))
        bag_count = max(1, self._fitting(b * d * chosen_count))
        for first in range(0, len(bags), bag_count):
            rows = slice(first, first + bag_count)
            proposals = self._bags(bags[rows])
            for start in range(0, len(chosen), chosen_count):
                part = slice(start, start + chosen_count)
                others = self._single(chosen_bags[part], chosen[part])  # (1, m, d)
                scores = self.pair_sum(proposals, others) + self.pair_sum(others, proposals).transpose(1, 2)
                scores = scores * different[rows, None, part]  # (n, B, m)
                total[..., rows, :] += torch.einsum("nbm,m...->...nb", scores, weights[part].to(scores.dtype))
        return total

    def _fitting(self, size: int) -> int:
        """How many items of `size` numbers fit into the memory limit; four such tensors exist at the same time."""
        return max(1, self.memory // (4 * self.projected.linear.element_size() * size))

    def _bags(self, bags: Tensor, proposals: slice = slice(None)) -> Projected:
        """Projections of the proposals of bags (n,): (n, B, d)."""
        return _map(self.projected, lambda tensor: tensor[bags, proposals])

    def _single(self, bags: Tensor, proposals: Tensor) -> Projected:
        """Projections of single proposals (m,): (1, m, d)."""
        return _map(self.projected, lambda tensor: tensor[bags, proposals][None])


def _map(projected: Projected, function: Callable[[Tensor], Tensor]) -> Projected:
    """Apply a function to every tensor that has an entry per proposal."""
    return Projected(
        function(projected.tanh_first),
        function(projected.tanh_second),
        function(projected.gate_first),
        function(projected.gate_second),
        function(projected.linear),
        projected.weight,
        projected.bias,
    )
