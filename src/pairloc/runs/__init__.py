"""Runs: stages that write into one folder, can be resumed, and record a hash of every file."""
