"""Weights of a network in one byte each, to package them: a matrix as integers and one scale for every row.

A weight w of a row is stored as round(w / s) with s = max |w| / 127 over that row, so it changes by at most s / 2.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from pairloc.errors import InputError

SCALE = ".scale"  # what the name of a row's scales adds to that of its matrix
_LEVELS = 127
_MIN_SIZE = 4096  # smaller tensors stay floating point: they save nothing
_HALF_MAX = torch.finfo(torch.float16).max


def compacted(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return large matrices and convolutions as integers with scales, and other numbers in half precision.

    A tensor whose numbers are too large for half precision stays as it is.
    """
    found = {}
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or (tensor.numel() and float(tensor.abs().max()) > _HALF_MAX):
            found[name] = tensor
        elif tensor.ndim < 2 or tensor.numel() < _MIN_SIZE:
            found[name] = tensor.half()
        else:
            rows = tensor.float().flatten(1)
            scale = rows.abs().amax(dim=1) / _LEVELS
            levels = (rows / scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None]).round()
            found[name], found[name + SCALE] = levels.to(torch.int8).view(tensor.shape), scale
    return found


def restored(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that `compacted` was given, as near as their integers are; others are returned as they are.

    Raises an InputError if the scales of a matrix do not fit it.
    """
    found = {name: tensor for name, tensor in weights.items() if not name.endswith(SCALE)}
    for name, scale in weights.items():
        if name.endswith(SCALE):
            matrix = found.get(name.removesuffix(SCALE))
            if matrix is None or matrix.dtype != torch.int8 or scale.shape != matrix.shape[:1]:
                raise InputError(f"the scales {name} do not fit any weights")
            found[name.removesuffix(SCALE)] = (matrix.flatten(1) * scale[:, None].float()).view(matrix.shape)
    return found
