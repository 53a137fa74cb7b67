"""Relation-network pair scores on CUDA: a tile of pairs stays in registers while the kernel loops over the dimensions.

One ordered pair and dimension costs two tanh, two additions and two multiply-adds: sigmoid(x) = (1 + tanh(x/2)) / 2,
with the factors 1/2 folded into the projections and the weight. The special-function units, which compute tanh, are the
bottleneck. Both directions of a pair are summed in one pass over the same operands.
"""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairloc.scores.pair_function import table_of_blocks
from pairloc.scores.relation import Projected

_ROWS, _COLUMNS, _WARPS = 8, 32, 1  # fastest tile on an H200, for 100 and for 300 proposals
_BUSY_PROGRAMS = 16_384  # number of programs that keep a GPU busy
_MAX_SPLITS = 32  # parts of the dimensions, each summed by another program


class TritonPairs:
    """Pair scores of M bags of B proposals, computed from their projections."""

    def __init__(self, projected: Projected) -> None:
        parts = (projected.tanh_first, projected.tanh_second, projected.gate_first / 2, projected.gate_second / 2)
        m, b, d = projected.tanh_first.shape
        self.operands = torch.empty(m, d, 4, b, device=projected.linear.device)  # the four of a dimension are adjacent
        for index, part in enumerate(parts):
            self.operands[:, :, index] = part.transpose(1, 2)
        self.weight = (projected.weight / 2).float().contiguous()
        # (M, B): each proposal's half of the linear terms and biases of both directions.
        self.linear = (2 * projected.linear + projected.bias).float().contiguous()
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

    def table(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`."""
        return table_of_blocks(self, left, right)

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairKernel`."""
        _, d, _, b = self.operands.shape
        if not len(bags) or not len(chosen):
            return torch.zeros(*weights.shape[1:], len(bags), b, device=self.operands.device)
        weight_columns = weights.to(torch.float32).reshape(len(chosen), -1).contiguous()  # (m, g)
        sums = weight_columns.shape[1]
        picks = self.operands[chosen_bags, :, :, chosen].permute(1, 2, 0).contiguous()  # (d, 4, m)
        columns = min(_COLUMNS, triton.next_power_of_2(len(chosen)))
        rows = _ROWS * _COLUMNS // columns
        programs = len(bags) * triton.cdiv(b, rows)
        # Few bags alone do not keep the GPU busy, so the dimensions are split too.
        splits = max(1, min(_MAX_SPLITS, d // 16, _BUSY_PROGRAMS // programs))
        parts = torch.empty(splits, sums, len(bags), b, device=self.operands.device)
        pair_against[len(bags), triton.cdiv(b, rows), splits](
            self.operands, self.linear, self.weight, bags.contiguous(), picks, self.linear[chosen_bags, chosen],
            chosen_bags.contiguous(), weight_columns, parts, len(chosen), len(bags), n_sums=sums,
            b=b, d=d, d_part=triton.cdiv(d, splits), n_rows=rows, n_columns=columns, num_warps=_WARPS, **self.options,
        )  # fmt: skip
        total = parts.sum(dim=0)
        return total if weights.ndim == 2 else total[0]


def _compiles() -> bool:
    """Whether kernels are compiled for a GPU; Triton's interpreter does not support inline assembly."""
    return os.environ.get("TRITON_INTERPRET", "0") != "1"


@triton.jit
def tanh(x, fast: tl.constexpr):
    """tanh by the hardware instruction (`fast`) or by its formula."""
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
    row_operands, column_operands, weight, row_stride, column_stride, rows, columns, in_rows, in_columns, first,
    d: tl.constexpr, d_part: tl.constexpr, fast: tl.constexpr,
    n_rows: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    """Sum both directions of a tile of pairs over `d_part` dimensions from `first`: (n_rows, n_columns)."""
    total = tl.zeros((n_rows, n_columns), tl.float32)
    for step in range(d_part):
        if d_part == d:
            k = step
            w = tl.load(weight + k)
        else:  # the last part may extend beyond d
            k = tl.minimum(first + step, d - 1)
            w = tl.load(weight + k, mask=first + step < d, other=0.0)
        row = row_operands + k * 4 * row_stride + rows
        column = column_operands + k * 4 * column_stride + columns
        row_tanh1 = tl.load(row, mask=in_rows, other=0.0)[:, None]
        row_tanh2 = tl.load(row + row_stride, mask=in_rows, other=0.0)[:, None]
        row_gate1 = tl.load(row + 2 * row_stride, mask=in_rows, other=0.0)[:, None]
        row_gate2 = tl.load(row + 3 * row_stride, mask=in_rows, other=0.0)[:, None]
        column_tanh1 = tl.load(column, mask=in_columns, other=0.0)[None, :]
        column_tanh2 = tl.load(column + column_stride, mask=in_columns, other=0.0)[None, :]
        column_gate1 = tl.load(column + 2 * column_stride, mask=in_columns, other=0.0)[None, :]
        column_gate2 = tl.load(column + 3 * column_stride, mask=in_columns, other=0.0)[None, :]
        row_first = gated(row_tanh1 + column_tanh2, row_gate1 + column_gate2, fast)
        column_first = gated(column_tanh1 + row_tanh2, column_gate1 + row_gate2, fast)
        total = tl.fma(row_first + column_first, w, total)
    return total


@triton.jit
def pair_block(
    operands, linear, weight, left, right, out,
    b: tl.constexpr, d: tl.constexpr, fast: tl.constexpr,
    n_rows: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    """out[n, i, j] = pair score, both directions, of proposal i of bag left[n] and proposal j of bag right[n]."""
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
    operands, linear, weight, bags, picks, pick_linear, pick_bags, pick_weights, parts, m, n_bags, n_sums: tl.constexpr,
    b: tl.constexpr, d: tl.constexpr, d_part: tl.constexpr, fast: tl.constexpr,
    n_rows: tl.constexpr, n_columns: tl.constexpr,
):  # fmt: skip
    """parts[s, g, n, i] = sum g over the picks of other bags for proposal i of bag bags[n], part s of the dimensions.

    The sum over s is the pair score; pick_weights is (m, g).
    """
    n = tl.program_id(0).to(tl.int64)
    rows = tl.program_id(1) * n_rows + tl.arange(0, n_rows)
    in_rows = rows < b
    bag = tl.load(bags + n)
    part = tl.program_id(2)
    is_first = (part == 0).to(tl.float32)  # only the first part adds the linear terms
    row_linear = tl.load(linear + bag * b + rows, mask=in_rows, other=0.0)
    start = 0
    while start < m:
        columns = start + tl.arange(0, n_columns)
        in_columns = columns < m
        total = tile(
            operands + bag * 4 * d * b, picks, weight, b, m, rows, columns, in_rows, in_columns, part * d_part,
            d, d_part, fast, n_rows, n_columns,
        )  # fmt: skip
        total += is_first * (row_linear[:, None] + tl.load(pick_linear + columns, mask=in_columns, other=0.0)[None, :])
        different = tl.load(pick_bags + columns, mask=in_columns, other=-1) != bag
        for g in range(n_sums):
            pick_weight = tl.load(pick_weights + columns * n_sums + g, mask=in_columns & different, other=0.0)
            result = parts + ((part * n_sums + g) * n_bags + n) * b + rows
            previous = tl.load(result, mask=in_rows & (start > 0), other=0.0)
            tl.store(result, previous + tl.sum(total * pick_weight[None, :], axis=1), mask=in_rows)
        start += n_columns
