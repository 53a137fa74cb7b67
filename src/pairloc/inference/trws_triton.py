"""TRW-S's messages on a GPU: one pass over the potentials a message, nothing stored in between."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pairloc.inference.trws import Sweeps, _Side


class TritonSweeps(Sweeps):
    """The same sweeps; messages are computed by a kernel that reads each potential once, where it lies."""

    def _lay_out(self, up: list[int], like: Sweeps | None) -> None:
        device = self.batch.unary.device
        self._pairwise = self.batch.pairwise.contiguous()
        self._down_edges = torch.arange(len(up), dtype=torch.int32, device=device)
        self._up_edges = torch.tensor(up, dtype=torch.int32, device=device)

    def _least(self, share: Tensor, side: _Side, *, down: bool) -> Tensor:
        edges = (self._down_edges if down else self._up_edges)[side.own]
        p, f, b = share.shape
        message = torch.empty_like(share)
        ahead, here = (128, 16) if down else (16, 128)
        least_sum[p, f, triton.cdiv(b, ahead)](
            self._pairwise, share.contiguous(), edges, message, self._pairwise.shape[1], f, b,
            DOWN=down, AHEAD=ahead, HERE=here,
        )  # fmt: skip
        return message


@triton.jit
def least_sum(
    pairwise, share, edges, message, e_count, f_count, b, DOWN: tl.constexpr, AHEAD: tl.constexpr, HERE: tl.constexpr
):  # type: ignore[no-untyped-def]
    """message[p, f, ahead] = min over here of share[p, f, here] + potentials of edge f.

    pairwise is (P, E, B, B); going down, `here` are its rows and `ahead` its columns, going up the other way round.
    """
    p, f = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ahead = tl.program_id(2) * AHEAD + tl.arange(0, AHEAD)
    table = pairwise + (p * e_count + tl.load(edges + f)) * b * b
    row = share + (p * f_count + f) * b
    least = tl.full((AHEAD,), float("inf"), tl.float32)
    for start in range(0, b, HERE):
        here = start + tl.arange(0, HERE)
        mine = tl.load(row + here, mask=here < b, other=float("inf"))
        if DOWN:  # the tile is (HERE, AHEAD)
            inside = (here[:, None] < b) & (ahead[None, :] < b)
            tile = tl.load(table + here[:, None] * b + ahead[None, :], mask=inside, other=0.0)
            least = tl.minimum(least, tl.min(tile + mine[:, None], axis=0))
        else:  # the tile is (AHEAD, HERE)
            inside = (ahead[:, None] < b) & (here[None, :] < b)
            tile = tl.load(table + ahead[:, None] * b + here[None, :], mask=inside, other=0.0)
            least = tl.minimum(least, tl.min(tile + mine[None, :], axis=1))
    tl.store(message + (p * f_count + f) * b + ahead, least, mask=ahead < b)
