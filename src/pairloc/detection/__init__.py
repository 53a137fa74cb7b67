"""A detector trained on the selection, or on the truth as the upper bound, and what it is worth."""
