"""Presets: whole runs as TOML files in the package; and the settings of a run from a preset, a file and changes.

Each preset's header says the command, the time it takes and the result to expect.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pairloc.errors import InputError, shown
from pairloc.io import Model, first_problem, reason
from pairloc.migration import moved_key
from pairloc.settings import RunSettings, Settings

_FOLDER = Path(__file__).parent
PRESETS = ("default", "paper", "demo")
_SEEDED = ("proposer", "transfer", "localization", "fine_tune", "mi_svm")
_PACKAGED = "coco63"  # weights that are a name, not a folder
_PATHS = ("source", "source_images", "target", "target_images", "truth")


def read_config(path: Path, changes: Sequence[str] = ()) -> RunSettings:
    """The settings of a run from a TOML file; `changes` are key=value pairs such as localization.energy.alpha=0.5.

    `preset` in the file names the settings to start from. Paths in the file are relative to it, `weights` included;
    paths in `changes` too.
    """
    content = read_toml(path)
    for change in changes:
        set_value(content, change)
    start = preset(content.pop("preset", "default"))
    settings = merged(start, content)
    data = settings.get("data")
    if isinstance(data, dict):
        near = {key: value for key, value in data.items() if key in _PATHS and isinstance(value, str)}
        settings["data"] = data | {key: str((path.parent / value).resolve()) for key, value in near.items()}
    weights = settings.get("weights")
    if isinstance(weights, str) and weights != _PACKAGED:
        settings["weights"] = str((path.parent / weights).resolve())
    return validated(settings, str(path))


def preset(name: object) -> dict[str, Any]:
    """The content of a preset."""
    if not isinstance(name, str) or name not in PRESETS:
        raise InputError(f"there is no preset {shown(name)}; known are {', '.join(PRESETS)}")
    return read_toml(_FOLDER / f"{name}.toml")


def demo_settings(seed: int = 0, *, fast: bool = False) -> RunSettings:
    """The settings of the demo; `fast` is less of everything, for tests."""
    content = merged(preset("demo"), read_toml(_FOLDER / "demo-fast.toml") if fast else {})
    return validated(merged(content, {"seed": seed, "data": {"scenes": {"seed": seed}}}), "the demo")


def validated(content: Mapping[str, Any], where: str) -> RunSettings:
    """Settings from the content of a TOML file; `seed` goes to every part that is not given one of its own."""
    moved = moved_key(content)
    if moved is not None:
        old, new = moved
        now = "is gone: remove it" if new is None else f"is called {new} now"
        raise InputError(f"{where}: {old} {now} (docs/settings.md lists all keys)")
    whole = merged(_defaults(), json.loads(json.dumps(content, default=str)))
    for part in _SEEDED:
        given = content.get(part)
        if isinstance(whole[part], dict) and not (isinstance(given, dict) and "seed" in given):
            whole[part]["seed"] = content.get("seed", 0)
    return checked(RunSettings, whole, where)


def _defaults() -> dict[str, Any]:
    """The default of every group, so that a file which names one key of a group keeps the others of that place."""
    fields = {name: field.default for name, field in RunSettings.model_fields.items()}
    return {name: value.model_dump() for name, value in fields.items() if isinstance(value, Settings)}


def checked(kind: type[Model], content: object, where: str) -> Model:
    """Settings of a kind; the first thing that is wrong is one sentence."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{where}: {first_problem(error)}") from error


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: is not valid TOML ({reason(error)})") from error


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """One table over another, group by group."""
    found = dict(base)
    for key, value in over.items():
        below = found.get(key)
        found[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return found


def set_value(content: dict[str, Any], change: str) -> None:
    """Apply one key=value pair; the value is TOML, or a bare word."""
    key, sign, text = change.partition("=")
    if not sign or not key.strip():
        raise InputError(f"--set {change}: is not of the form key=value")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text  # a bare word
    *groups, name = key.strip().split(".")
    place = content
    for group in groups:
        place = place.setdefault(group, {})
        if not isinstance(place, dict):
            raise InputError(f"--set {change}: {group} is not a group of settings")
    place[name] = value
