"""Data sets: images with tags, the boxes of annotated ones, boxes that a program found, folds."""
