"""A few proposals of every bag: foreground and background (paper: 3 and 7 in each training iteration)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """m proposals of each of n bags."""

    proposals: Tensor  # (n, m)
    foreground: Tensor  # (n, m) whether drawn as foreground
    drawn: Tensor  # (n, m) False where the bag had too few


def draw(foreground: Tensor, background: Tensor, counts: tuple[int, int], generator: torch.Generator) -> Sample:
    """Draw proposals evenly at random, from masks (n, B); foreground that is missing is made up for by background."""
    fg, bg = counts
    keys = torch.rand(foreground.shape, generator=generator, device=generator.device).to(foreground.device)
    first, first_drawn = _lowest(keys, foreground, fg)
    second, second_drawn = _lowest(keys, background, fg + bg)
    spare = fg - first_drawn.sum(dim=1, keepdim=True)
    place = torch.arange(second.shape[1], device=second.device)
    second_drawn = second_drawn & (place < bg + spare)
    is_first = torch.cat([torch.ones_like(first_drawn), torch.zeros_like(second_drawn)], dim=1)
    return Sample(torch.cat([first, second], dim=1), is_first, torch.cat([first_drawn, second_drawn], dim=1))


def _lowest(keys: Tensor, allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    lowest, place = keys.masked_fill(~allowed, 2.0).topk(min(count, keys.shape[1]), dim=1, largest=False)
    return place, lowest < 2.0
