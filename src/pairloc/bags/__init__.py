"""Bags: the proposals of an image with the features that the scores are learned on."""

from pairloc.bags.store import Bag, BagStore

__all__ = ["Bag", "BagStore"]
