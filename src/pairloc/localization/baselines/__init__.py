"""Baselines to compare with, each in its own file and with its own settings."""
