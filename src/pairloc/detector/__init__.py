"""Faster R-CNN: the proposer and the final detector share one network, one training loop and one prediction path."""
