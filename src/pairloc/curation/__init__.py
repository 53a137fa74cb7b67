"""Preparation of data: the doctor, splits into source and target, generated scenes."""
