"""pairloc: tagged photographs in, boxes out."""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`pairloc.Localizer`, imported when it is asked for: torch takes seconds."""
    if name == "Localizer":
        return importlib.import_module("pairloc.api").Localizer
    raise AttributeError(name)
