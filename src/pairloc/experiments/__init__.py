"""Experiments on finished runs: tuning of settings, and the studies of the paper."""
