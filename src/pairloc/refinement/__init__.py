"""Refinement: a chain of functions from boxes to boxes."""
