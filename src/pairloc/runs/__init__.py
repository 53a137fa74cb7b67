"""Runs: stages in a folder, resumed where they stopped, with a hash of everything they wrote."""
