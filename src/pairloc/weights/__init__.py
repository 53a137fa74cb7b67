"""Weights in the box: a proposer and transfer scores learned on COCO images, so that a user need not train anything.

coco63/ holds what `Localizer.save` writes, in half precision, with the settings to localize with and CARD.md, which
says what they were learned on and what they cannot do.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pairloc.errors import InputError
from pairloc.io import Model, first_problem, read_json
from pairloc.migration import migrated
from pairloc.settings import ExtractSettings, LocalizationSettings

PACKAGED = "coco63"
SETTINGS, EXTRACT = "localization.json", "extract.json"
_OLD_SETTINGS = "learning.json"  # what the file was called before settings were grouped


def weights_folder(name: str) -> Path:
    """The folder of packaged weights, of weights the user saved, or of a run."""
    folder = Path(__file__).parent / PACKAGED if name == PACKAGED else Path(name)
    if not (folder / "proposer").is_dir() or not (folder / "transfer").is_dir():
        raise InputError(f"{name}: does not hold a proposer and transfer scores; packaged is {PACKAGED!r}")
    return folder


def extract_of(name: str) -> ExtractSettings:
    """How to turn images into bags for weights: as those were that they were learned on."""
    folder = weights_folder(name)
    for file, keys in ((EXTRACT, ()), ("config.json", ("settings", "extract"))):
        if (folder / file).is_file():
            content = _group(folder / file, keys) | {"unreadable": "skip", "workers": 0, "batch": None}
            return _checked(ExtractSettings, content, folder / file)
    return ExtractSettings(unreadable="skip")


def localization_of(name: str) -> LocalizationSettings:
    """The settings that weights come with, or those of the run they are; the defaults where they come with none."""
    folder = weights_folder(name)
    for file, keys in ((SETTINGS, ()), (_OLD_SETTINGS, ()), ("config.json", ("settings", "localization", "learning"))):
        if (folder / file).is_file():
            content = migrated("localization", _group(folder / file, keys))
            return _checked(LocalizationSettings, content, folder / file)
    return LocalizationSettings()


def _group(file: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """The settings in a file, below those of the keys that are there."""
    content: Any = read_json(file)
    for key in keys:
        content = content.get(key, content) if isinstance(content, dict) else content
    if not isinstance(content, dict):
        raise InputError(f"{file}: does not hold settings")
    return content


def _checked(kind: type[Model], content: dict[str, Any], file: Path) -> Model:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}") from error
