"""pairloc: tagged images in, boxes out.

>>> from pairloc import Localizer
>>> found = Localizer.pretrained().localize(["a.jpg", "b.jpg"], ["cat", "cat"])
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairloc.api import Localizer, evaluate
    from pairloc.formats.reading import read
    from pairloc.localization.result import Localization

# Before torch is imported: threads that wait for each other soon sleep instead of spinning. Beside other programs on
# the same cores spinning makes re-training four times slower (docs/experiments/speed.md).
if "OMP_WAIT_POLICY" not in os.environ:  # which the number below would overrule
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__version__ = "0.1.0"
__all__ = ["Localization", "Localizer", "evaluate", "read"]

_MODULES = {
    "Localizer": "pairloc.api",
    "evaluate": "pairloc.api",
    "Localization": "pairloc.localization.result",
    "read": "pairloc.formats.reading",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, because importing torch takes seconds."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'pairloc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
