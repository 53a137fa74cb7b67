"""How good it is, by the truth."""
