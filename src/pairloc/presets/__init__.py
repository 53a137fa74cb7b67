"""Presets: settings of whole runs as TOML files, and reading of TOML files that start from a preset.

The header of each preset gives the command, the time it takes and the expected result.
"""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pairloc.errors import InputError, shown
from pairloc.io import Model, first_problem, reason
from pairloc.migration import moved_key
from pairloc.settings import ExtractSettings, RunSettings, Settings

_FOLDER = Path(__file__).parent
PRESETS = ("default", "paper", "paper-ilsvrc", "demo")
_SEEDED_SECTIONS = ("proposer", "transfer", "evidence", "localization", "fine_tune", "mi_svm", "deselaers")
_PACKAGED_WEIGHTS = "coco63"  # names packaged weights; any other value is a folder
_PATHS = {
    "data": ("source", "source_images", "target", "target_images", "truth"),
    "proposer": ("backbone_weights",),
    "evidence": ("weights",),
    "snap": ("weights",),
    "tang": ("semantic_table",),
}


def read_config(
    path: Path, changes: Sequence[str] = (), *, extract_of: Callable[[str], ExtractSettings] | None = None
) -> RunSettings:
    """Read the settings of a run from a TOML file and apply changes, e.g. localization.energy.alpha=0.5.

    The key `preset` of the file names the settings to start from. Paths, including `weights` and those in `changes`,
    are relative to the folder of the file. `extract_of` tells how weights were learned, so that a run with weights
    extracts the same kind of features unless the file says otherwise. Raises an InputError if the file or a value is
    invalid.

    >>> settings = read_config(Path("mine.toml"), ["localization.rounds=3"])
    """
    content = read_toml(path)
    for change in changes:
        set_value(content, change)
    start = preset(content.pop("preset", "default"))
    settings = merged(start, content)
    for section, keys in _PATHS.items():
        group = settings.get(section)
        if isinstance(group, dict):
            paths = {
                key: value
                for key, value in group.items()
                if key in keys and isinstance(value, str) and (key != "weights" or value != _PACKAGED_WEIGHTS)
            }
            settings[section] = group | {key: str((path.parent / value).resolve()) for key, value in paths.items()}
    weights = settings.get("weights")
    if isinstance(weights, str) and weights != _PACKAGED_WEIGHTS:
        settings["weights"] = str((path.parent / weights).resolve())
    if isinstance(weights, str) and extract_of is not None and isinstance(settings.get("extract", {}), dict):
        settings["extract"] = merged(extract_of(settings["weights"]).cache_key(), settings.get("extract", {}))
    return validated(settings, str(path))


def preset(name: object) -> dict[str, Any]:
    """Return the content of a preset."""
    if not isinstance(name, str) or name not in PRESETS:
        raise InputError(f"there is no preset {shown(name)}; known are {', '.join(PRESETS)}")
    content = read_toml(_FOLDER / f"{name}.toml")
    return merged(preset(content.pop("preset")), content) if "preset" in content else content


def demo_settings(seed: int = 0, *, fast: bool = False) -> RunSettings:
    """Return the settings of the demo; `fast` reduces data and training, for tests."""
    content = merged(preset("demo"), read_toml(_FOLDER / "demo-fast.toml") if fast else {})
    return validated(merged(content, {"seed": seed, "data": {"scenes": {"seed": seed}}}), "the demo")


def validated(content: Mapping[str, Any], where: str) -> RunSettings:
    """Validate the content of a TOML file; `where` names it in errors.

    The seed of the run is copied to every section that does not set its own. Raises an InputError for an outdated key
    or an invalid value.
    """
    moved = moved_key(content)
    if moved is not None:
        old, new = moved
        now = "no longer exists: remove it" if new is None else f"is now called {new}: rename it"
        raise InputError(f"{where}: {old} {now} (docs/reference/settings.md lists all keys)")
    settings = merged(_defaults(), json.loads(json.dumps(content, default=str)))
    for section in _SEEDED_SECTIONS:
        given = content.get(section)
        if isinstance(settings[section], dict) and not (isinstance(given, dict) and "seed" in given):
            settings[section]["seed"] = content.get("seed", 0)
    return checked(RunSettings, settings, where)


def _defaults() -> dict[str, Any]:
    """Return the defaults of every section, so that a file that sets one key of a group keeps the others."""
    fields = {name: field.default for name, field in RunSettings.model_fields.items()}
    return {name: value.model_dump() for name, value in fields.items() if isinstance(value, Settings)}


def checked(kind: type[Model], content: object, where: str) -> Model:
    """Validate settings of a kind; raise an InputError that names the first invalid key."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error)}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; raise an InputError if it cannot be read or parsed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is not valid TOML ({reason(error)})") from error


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`, recursively for nested tables."""
    result = dict(base)
    for key, value in over.items():
        current = result.get(key)
        result[key] = merged(current, value) if isinstance(current, dict) and isinstance(value, dict) else value
    return result


def set_value(content: dict[str, Any], change: str) -> None:
    """Apply one key=value pair to the content of a TOML file; the value is TOML or an unquoted string."""
    key, sign, text = change.partition("=")
    if not sign or not key.strip():
        raise InputError(f"--set {change}: is not of the form key=value, e.g. seed=1")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text  # an unquoted string
    *groups, name = key.strip().split(".")
    table = content
    for group in groups:
        table = table.setdefault(group, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {change}: {group} is not a group of settings")
    table[name] = value
