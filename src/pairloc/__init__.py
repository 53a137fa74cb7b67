"""pairloc: tagged photographs in, boxes out."""

__version__ = "0.1.0"
