"""Annotated and tagged images come in here, one reader per format."""

from pairloc.data.dataset import Dataset, Image
from pairloc.data.reading import FORMATS, read

__all__ = ["FORMATS", "Dataset", "Image", "read"]
