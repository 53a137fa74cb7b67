"""One file per format, for reading and for writing. `read` recognises the format by itself."""

from pairloc.formats.reading import FORMATS, read
from pairloc.formats.writing import write

__all__ = ["FORMATS", "read", "write"]
