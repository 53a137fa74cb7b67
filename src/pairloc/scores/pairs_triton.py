"""Pair scores on CUDA: a tile of pairs stays in registers while the dimensions pass by.

A pair and dimension cost two tanh on the special-function units (sigmoid(x) = (1 + tanh(x/2)) / 2, with the half folded
into the projections and the weight), two additions and two multiply-adds; the special-function units are the limit.
Both directions of a pair are summed in one pass over the same operands.
"""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairloc.scores.relation import Projected

_ROWS, _COLUMNS, _WARPS = 8, 32, 1  # the fastest tried on an H200, for 300 proposals as for 100
_BUSY, _MOST_SPLITS = 16_384, 32  # programs that keep a GPU busy, and how finely dimensions are shared out for that


class TritonPairs:
    """Pair scores of M bags of B proposals, from their projections."""

    def __init__(self, projected: Projected) -> None:
        parts = (projected.tanh_first, projected.tanh_second, projected.gate_first / 2, projected.gate_second / 2)
        m, b, d = projected.tanh_first.shape
        self.operands = torch.empty(m, d, 4, b, device=projected.linear.device)  # four a dimension, side by side
        for place, part in enumerate(parts):
            self.operands[:, :, place] = part.transpose(1, 2)
        self.weight = (projected.weight / 2).float().contiguous()
        self.linear = (2 * projected.linear + projected.bias).float().contiguous()  # (M, B), half of both directions
        self.options = {"fast": _compiles()}

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`."""
        _, d, _, b = self.operands.shape
        out = torch.empty(len(left), b, b, device=self.operands.device)
        grid = (len(left), triton.cdiv(b, _ROWS), triton.cdiv(b, _COLUMNS))
        if len(left):
            pair_block[grid](
                self.operands, self.linear, self.weight, left.contiguous(), right.contiguous(), out,
                b=b, d=d, n_rows=_ROWS, n_columns=_COLUMNS, num_warps=_WARPS, **self.options,
            )  # fmt: skip
        return out

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairKernel`."""
        _, d, _, b = self.operands.shape
        if not len(bags) or not len(chosen):
            return torch.zeros(*weights.shape[1:], len(bags), b, device=self.operands.device)
        shares = weights.to(torch.float32).reshape(len(chosen), -1).contiguous()  # (m, g)
        sums = shares.shape[1]
        picks = self.operands[chosen_bags, :, :, chosen].permute(1, 2, 0).contiguous()  # (d, 4, m)
        columns = min(_COLUMNS, triton.next_power_of_2(len(chosen)))
        rows = _ROWS * _COLUMNS // columns
        programs = len(bags) * triton.cdiv(b, rows)
        splits = max(
            1, min(_MOST_SPLITS, d // 16, _BUSY // programs)
        )  # of the dimensions, where bags alone are too few
        parts = torch.empty(splits, sums, len(bags), b, device=self.operands.device)
        pair_against[len(bags), triton.cdiv(b, rows), splits](
            self.operands, self.linear, self.weight, bags.contiguous(), picks, self.linear[chosen_bags, chosen],
            chosen_bags.contiguous(), shares, parts, len(chosen), len(bags), n_sums=sums,
            b=b, d=d, d_part=triton.cdiv(d, splits), n_rows=rows, n_columns=columns, num_warps=_WARPS, **self.options,
        )  # fmt: skip
        total = parts.sum(dim=0)
        return total if weights.ndim == 2 else total[0]


def _compiles() -> bool:
    """Whether kernels run on a GPU, rather than in Triton's interpreter, which knows no assembly."""
    return os.environ.get("TRITON_INTERPRET", "0") != "1"


@triton.jit
def tanh(x, fast: tl.constexpr):
    """tanh by the hardware's own instruction (fast) or by its formula."""
    if fast:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def gated(x, y, fast: tl.constexpr):
    """tanh(x) (1 + tanh(y))."""
    t = tanh(x, fast)
    return tl.fma(t, tanh(y, fast), t)


@triton.jit
def tile(
    mine, theirs, weight, row_stride, column_stride, rows, columns, in_rows, in_columns, first,
    d: tl.constexpr, d_part: tl.constexpr, fast: tl.constexpr,
    n_rows: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    """Both directions of the pairs of a tile over `d_part` dimensions from `first`: (n_rows, n_columns)."""
    total = tl.zeros((n_rows, n_columns), tl.float32)
    for step in range(d_part):
        if d_part == d:
            k = step
            w = tl.load(weight + k)
        else:  # the last part may reach beyond the dimensions
            k = tl.minimum(first + step, d - 1)
            w = tl.load(weight + k, mask=first + step < d, other=0.0)
        m = mine + k * 4 * row_stride + rows
        t = theirs + k * 4 * column_stride + columns
        a1 = tl.load(m, mask=in_rows, other=0.0)[:, None]
        a2 = tl.load(m + row_stride, mask=in_rows, other=0.0)[:, None]
        b1 = tl.load(m + 2 * row_stride, mask=in_rows, other=0.0)[:, None]
        b2 = tl.load(m + 3 * row_stride, mask=in_rows, other=0.0)[:, None]
        c1 = tl.load(t, mask=in_columns, other=0.0)[None, :]
        c2 = tl.load(t + column_stride, mask=in_columns, other=0.0)[None, :]
        e1 = tl.load(t + 2 * column_stride, mask=in_columns, other=0.0)[None, :]
        e2 = tl.load(t + 3 * column_stride, mask=in_columns, other=0.0)[None, :]
        forth = gated(a1 + c2, b1 + e2, fast)
        back = gated(c1 + a2, e1 + b2, fast)
        total = tl.fma(forth + back, w, total)
    return total


@triton.jit
def pair_block(
    operands, linear, weight, left, right, out,
    b: tl.constexpr, d: tl.constexpr, fast: tl.constexpr,
    n_rows: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    """out[n, i, j] = both directions of proposal i of bag left[n] and proposal j of bag right[n]."""
    n = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * n_rows + tl.arange(0, n_rows)
    columns = tl.program_id(2) * n_columns + tl.arange(0, n_columns)
    in_rows, in_columns = rows < b, columns < b
    i, j = tl.load(left + n), tl.load(right + n)
    total = tile(
        operands + i * 4 * d * b, operands + j * 4 * d * b, weight, b, b, rows, columns, in_rows, in_columns, 0,
        d, d, fast, n_rows, n_columns,
    )  # fmt: skip
    total += tl.load(linear + i * b + rows, mask=in_rows, other=0.0)[:, None]
    total += tl.load(linear + j * b + columns, mask=in_columns, other=0.0)[None, :]
    inside = in_rows[:, None] & in_columns[None, :]
    tl.store(out + (n * b + rows[:, None]) * b + columns[None, :], total, mask=inside)


@triton.jit
def pair_against(
    operands, linear, weight, bags, picks, pick_linear, pick_bags, shares, parts, m, n_bags, n_sums: tl.constexpr,
    b: tl.constexpr, d: tl.constexpr, d_part: tl.constexpr, fast: tl.constexpr,
    n_rows: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    """parts[s, g, n, i] = part s of sum g over picks of other bags, by weight, of proposal i of bag bags[n]."""
    n = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * n_rows + tl.arange(0, n_rows)
    in_rows = rows < b
    bag = tl.load(bags + n)
    part = tl.program_id(2)
    is_first = (part == 0).to(tl.float32)  # the linear part is added once
    own = tl.load(linear + bag * b + rows, mask=in_rows, other=0.0)
    start = 0
    while start < m:
        columns = start + tl.arange(0, n_columns)
        in_columns = columns < m
        total = tile(
            operands + bag * 4 * d * b, picks, weight, b, m, rows, columns, in_rows, in_columns, part * d_part,
            d, d_part, fast, n_rows, n_columns,
        )  # fmt: skip
        total += is_first * (own[:, None] + tl.load(pick_linear + columns, mask=in_columns, other=0.0)[None, :])
        apart = tl.load(pick_bags + columns, mask=in_columns, other=-1) != bag
        for g in range(n_sums):
            share = tl.load(shares + columns * n_sums + g, mask=in_columns & apart, other=0.0)
            result = parts + ((part * n_sums + g) * n_bags + n) * b + rows
            before = tl.load(result, mask=in_rows & (start > 0), other=0.0)
            tl.store(result, before + tl.sum(total * share[None, :], axis=1), mask=in_rows)
        start += n_columns
