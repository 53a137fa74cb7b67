"""Evaluation of boxes and proposals against ground truth."""
