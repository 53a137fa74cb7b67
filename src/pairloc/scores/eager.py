"""Pair scores in plain torch, in chunks that fit the memory set for them: the readable reference."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from pairloc.scores.relation import Projected


def pair_sum(left: Projected, right: Projected) -> Tensor:
    """s(e, e') of all pairs of n bag pairs: (n, L, d) and (n, R, d) in `Projected` -> (n, L, R)."""
    tanh = left.tanh_first[:, :, None] + right.tanh_second[:, None]  # (n, L, R, d)
    gate = left.gate_first[:, :, None] + right.gate_second[:, None]
    # tanh(x) = 2 sigmoid(2x) - 1: on a CPU torch's sigmoid takes a quarter of the time of its tanh
    tanh = tanh.mul_(2).sigmoid_().mul_(2).sub_(1)
    gated = tanh.mul_(gate.sigmoid_()) @ left.weight  # (n, L, R)
    return gated + left.linear[:, :, None] + right.linear[:, None] + left.bias


def fused_pair_sum(left: Projected, right: Projected) -> Tensor:
    """The same in one expression, which torch.compile turns into one loop."""
    tanh = left.tanh_first[:, :, None] + right.tanh_second[:, None]  # (n, L, R, d)
    gate = left.gate_first[:, :, None] + right.gate_second[:, None]
    gated = (torch.tanh(tanh) * torch.sigmoid(gate) * left.weight).sum(dim=-1)
    return gated + left.linear[:, :, None] + right.linear[:, None] + left.bias


@functools.cache
def compiled_pair_sum() -> Callable[[Projected, Projected], Tensor]:
    """The same, fused by torch.compile; it is compiled when it is first called."""
    return torch.compile(fused_pair_sum, dynamic=True)


class Eager:
    """Pair scores of M bags of B proposals, from their projections."""

    def __init__(self, projected: Projected, memory: int, *, compiled: bool = False) -> None:
        self.projected = projected  # (M, B, d) each
        self.memory = memory
        self.pair_sum = compiled_pair_sum() if compiled else pair_sum

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`."""
        _, b, d = self.projected.tanh_first.shape
        out = self.projected.linear.new_empty(len(left), b, b)
        rows = self._step(b * d)  # rows of one block at a time, or several blocks
        bags = max(1, rows // b)
        for first in range(0, len(left), bags):
            some = slice(first, first + bags)
            other = self._take(right[some])
            for row in range(0, b, rows):
                part = slice(row, row + rows)
                mine = self._take(left[some], part)
                out[some, part] = self.pair_sum(mine, other) + self.pair_sum(other, mine).transpose(1, 2)
        return out

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairKernel`."""
        _, b, d = self.projected.tanh_first.shape
        total = self.projected.linear.new_zeros(*weights.shape[1:], len(bags), b)
        apart = bags[:, None] != chosen_bags  # (n, m)
        few = max(1, min(len(chosen), self._step(b * d)))
        some = max(1, self._step(b * d * few))
        for first in range(0, len(bags), some):
            rows = slice(first, first + some)
            mine = self._take(bags[rows])
            for start in range(0, len(chosen), few):
                part = slice(start, start + few)
                other = self._pick(chosen_bags[part], chosen[part])  # (1, m, d)
                scores = self.pair_sum(mine, other) + self.pair_sum(other, mine).transpose(1, 2)  # (n, B, m)
                scores = scores * apart[rows, None, part]
                total[..., rows, :] += torch.einsum("nbm,m...->...nb", scores, weights[part].to(scores.dtype))
        return total

    def _step(self, size: int) -> int:
        """How many things of `size` numbers fit; four such tensors live at a time."""
        return max(1, self.memory // (4 * self.projected.linear.element_size() * size))

    def _take(self, bags: Tensor, proposals: slice = slice(None)) -> Projected:
        """The projections of bags (n,): (n, B, d)."""
        return _map(self.projected, lambda tensor: tensor[bags, proposals])

    def _pick(self, bags: Tensor, proposals: Tensor) -> Projected:
        """The projections of single proposals (m,): (1, m, d)."""
        return _map(self.projected, lambda tensor: tensor[bags, proposals][None])


def _map(projected: Projected, change: Callable[[Tensor], Tensor]) -> Projected:
    """The same change of everything that is there once a proposal."""
    return Projected(
        change(projected.tanh_first),
        change(projected.tanh_second),
        change(projected.gate_first),
        change(projected.gate_second),
        change(projected.linear),
        projected.weight,
        projected.bias,
    )
