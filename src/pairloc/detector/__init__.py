"""Faster R-CNN: the proposer and the final detector are one network, trained and run by the same code."""
