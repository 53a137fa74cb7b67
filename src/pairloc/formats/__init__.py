"""Data set formats, one file each for reading and writing; `read` recognises the format."""

from pairloc.formats.reading import FORMATS, read
from pairloc.formats.writing import write

__all__ = ["FORMATS", "read", "write"]
