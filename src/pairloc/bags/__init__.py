"""Images become bags: proposals, and the features that scores are learned on."""

from pairloc.bags.store import Bag, BagStore

__all__ = ["Bag", "BagStore"]
