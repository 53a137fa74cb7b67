"""Data sets: images with tags, ground-truth boxes, predicted boxes with scores, folds."""
