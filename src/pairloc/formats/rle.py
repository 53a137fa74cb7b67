"""Run-length encoded masks, as COCO has them: lengths of runs down the columns, written as text.

The runs alternate between outside and inside, starting outside. From the third run on, the difference to the run before
the previous one is written, in groups of five bits with the lowest first: bit 6 says that more groups follow, and the
highest bit of the last group is the sign.
"""

from itertools import pairwise

import numpy as np

from pairloc.boxes import Bools
from pairloc.errors import InputError

_ZERO = 48  # the character of an empty group
_DAMAGED = "is not a run-length encoded mask"


def encode(mask: Bools) -> str:
    """The text of a mask (h, w)."""
    pixels = mask.T.ravel()  # down the columns
    edges = np.flatnonzero(np.diff(pixels, prepend=np.False_)).tolist()
    bounds = [0, *edges, len(pixels)]
    runs = [end - start for start, end in pairwise(bounds)]
    return "".join(_text(run - runs[i - 2] if i > 2 else run) for i, run in enumerate(runs))


def decode(text: str, height: int, width: int) -> Bools:
    """The mask (h, w) of a text; raises an InputError if it is not one of this size."""
    runs: list[int] = []
    for value in _numbers(text):
        runs.append(value + runs[-2] if len(runs) > 2 else value)
    if any(run < 0 for run in runs) or sum(runs) != height * width:
        raise InputError(f"{text[:20]!r} {_DAMAGED} of {width} x {height} pixels")
    inside = np.arange(len(runs)) % 2 == 1
    return np.repeat(inside, runs).reshape(width, height).T


def _text(value: int) -> str:
    groups = []
    while True:
        group = value & 31
        value >>= 5
        more = value != (-1 if group & 16 else 0)
        groups.append(chr(group + 32 * more + _ZERO))
        if not more:
            return "".join(groups)


def _numbers(text: str) -> list[int]:
    numbers, value, shift = [], 0, 0
    for character in text:
        group = ord(character) - _ZERO
        if not 0 <= group < 64 or shift > 60:
            raise InputError(f"{text[:20]!r} {_DAMAGED}")
        value |= (group & 31) << shift
        shift += 5
        if not group & 32:
            numbers.append(value - (1 << shift) if group & 16 else value)
            value, shift = 0, 0
    if shift:
        raise InputError(f"{text[:20]!r} {_DAMAGED}")
    return numbers
