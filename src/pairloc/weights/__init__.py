"""Weights in the box: a proposer and transfer scores learned on photographs, so that a user need not train anything.

coco63/ holds what `Localizer.save` writes, in half precision, with learning.json (the settings to localize with) and
CARD.md, which says what they were learned on and what they cannot do.
"""

from pathlib import Path

from pairloc.errors import InputError

PACKAGED = "coco63"


def weights_folder(name: str) -> Path:
    """The folder of packaged weights, of weights the user saved, or of a run."""
    folder = Path(__file__).parent / PACKAGED if name == PACKAGED else Path(name)
    if not (folder / "proposer").is_dir() or not (folder / "transfer").is_dir():
        raise InputError(f"{name}: does not hold a proposer and transfer scores; packaged is {PACKAGED!r}")
    return folder
