"""Learning: transfer scores from the source, class scores from the selection, and the alternation of the two steps."""
