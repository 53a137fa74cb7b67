"""Packaged weights: a proposer and transfer scores learned on COCO, so that a user need not train anything.

coco63/ contains what `Localizer.save` writes, in half precision, with the settings for localization and a model card,
CARD.md, that describes training data and limitations.
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
_OLD_SETTINGS = "learning.json"  # name of the file before settings were grouped


def weights_folder(name: str) -> Path:
    """The folder of weights: `PACKAGED`, or the path of a folder that `Localizer.save` or a run wrote.

    Raises an InputError if the folder has no proposer or no transfer scores.
    """
    folder = Path(__file__).parent / PACKAGED if name == PACKAGED else Path(name)
    if not (folder / "proposer").is_dir() or not (folder / "transfer").is_dir():
        raise InputError(f"{name}: is not a folder of weights; use {PACKAGED!r} or the folder of a finished run")
    return folder


def extract_of(name: str) -> ExtractSettings:
    """Extraction settings that weights were learned with, so that new images get bags of the same kind.

    Unreadable images are skipped; `workers` and `batch`, which depend on the machine, have their defaults.
    """
    folder = weights_folder(name)
    for file, keys in ((EXTRACT, ()), ("config.json", ("settings", "extract"))):
        if (folder / file).is_file():
            content = _group(folder / file, keys) | {"unreadable": "skip", "workers": 0, "batch": None}
            return _checked(ExtractSettings, content, folder / file)
    return ExtractSettings(unreadable="skip")


def localization_of(name: str) -> LocalizationSettings:
    """Localization settings stored with weights or in the configuration of a run; the defaults if there are none."""
    folder = weights_folder(name)
    for file, keys in ((SETTINGS, ()), (_OLD_SETTINGS, ()), ("config.json", ("settings", "localization", "learning"))):
        if (folder / file).is_file():
            content = migrated("localization", _group(folder / file, keys))
            return _checked(LocalizationSettings, content, folder / file)
    return LocalizationSettings()


def _group(file: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """Read a group of settings from a JSON file by descending into those of `keys` that exist."""
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
