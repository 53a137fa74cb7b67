"""What a solver answers."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Solution:
    """A labelling, its energy, and what is known of how good it is."""

    labels: Ints  # (N,)
    energy: float
    lower_bound: float  # no labelling has less; minus infinity where the solver proves nothing
    iterations: int
    history: Floats  # (T, 2) lower bound and lowest energy after every iteration
    certified: bool  # energy and bound meet within the tolerance: this is a minimum
    # (N,) what the best other label of a node would cost more. Where the solver has a bound: at least, whatever the
    # other nodes answer (below zero: not proved to cost more). Where it has none: if the others stay.
    gaps: Floats
