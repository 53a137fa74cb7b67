"""The result of a solver for one problem."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Solution:
    """A labelling with its energy and the guarantees of the solver.

    Attributes
    ----------
    labels : (N,) label of every node
    energy : energy of the labelling
    lower_bound : no labelling has a lower energy; minus infinity if the solver has no bound
    iterations : number of iterations used
    history : (T, 2) lower bound and lowest energy after every iteration of the iterations
    certified : whether energy and bound agree, so that no labelling is better
    gaps : (N,) energy increase if a node takes its best other label. With a bounding solver, a guaranteed lower limit
        whatever the other nodes choose; otherwise the other nodes keep their labels

    Examples
    --------
    >>> solve(Problem([[0.0, 1.0], [3.0, 0.0]], {})).certified
    True
    """

    labels: Ints  # (N,)
    energy: float
    lower_bound: float  # no labelling has a lower energy; minus infinity if the solver has no bound
    iterations: int
    history: Floats  # (T, 2) lower bound and lowest energy after every iteration
    certified: bool  # energy and lower bound agree within the tolerance, so the labelling is a minimum
    # (N,) energy increase if a node takes its best other label. With a bounding solver, a guaranteed lower limit
    # whatever the other nodes choose (negative: nothing is proved). Otherwise the other nodes keep their labels.
    gaps: Floats
