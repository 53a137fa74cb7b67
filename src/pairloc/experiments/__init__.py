"""Experiments on finished runs: choosing settings, and the paper's studies."""
