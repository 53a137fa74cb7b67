"""Mixture of class and transfer pair scores (paper, "Knowledge Transfer"):

    psi^P_c <- (1 - lambda1) psi^P_c + lambda1 psi^P

The two may use features of different networks.
"""

from torch import Tensor

from pairloc.scores.pair_function import PairKernel


class MixedPairs:
    """Weighted sum of class and transfer pair scores; scores of weight zero are never computed.

    Raises ValueError if `lambda1` is not between 0 and 1, or if scores of positive weight are None.
    """

    def __init__(self, class_scores: PairKernel | None, transfer_scores: PairKernel | None, lambda1: float) -> None:
        _check("lambda1", lambda1)
        weighted = [(class_scores, 1 - lambda1), (transfer_scores, lambda1)]
        self._weighted = [(scores, weight) for scores, weight in weighted if weight and scores is not None]
        if len(self._weighted) < sum(weight > 0 for _, weight in weighted):
            raise ValueError(f"lambda1 is {lambda1}, but the class or transfer scores that it needs are None")

    def block(self, left: Tensor, right: Tensor) -> Tensor:
        """See `PairKernel`."""
        return _sum([weight * scores.block(left, right) for scores, weight in self._weighted])

    def against(self, bags: Tensor, chosen_bags: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """See `PairKernel`."""
        parts = [(scores.against(bags, chosen_bags, chosen, weights), weight) for scores, weight in self._weighted]
        return _sum([weight * part for part, weight in parts])


def _sum(parts: list[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _check(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; it must be between 0 and 1")
