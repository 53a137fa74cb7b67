"""Settings of a run from a TOML file, from the command line, and of the demo."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pairloc.errors import InputError
from pairloc.io import reason
from pairloc.settings import DEMO, FAST, PRESETS, RunSettings


def read_config(path: Path, changes: Sequence[str] = ()) -> RunSettings:
    """Settings from a TOML file; `changes` are key=value pairs such as learning.alpha=0.5.

    `preset` in the file, "paper" or "released", gives the settings of learning a start; relative paths are relative to
    the file.
    """
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({reason(error)})") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: is not valid TOML ({error})") from error
    for change in changes:
        _set(content, change)
    preset = content.pop("preset", None)
    if preset is not None:
        if preset not in PRESETS:
            raise InputError(f"{path}: there is no preset {preset!r}; known are {', '.join(PRESETS)}")
        content["learning"] = PRESETS[preset] | content.get("learning", {})
    for name in ("source", "source_images", "target", "target_images", "truth"):
        if isinstance(content.get("data", {}).get(name), str):
            content["data"][name] = (path.parent / content["data"][name]).resolve()
    for part in ("proposer", "transfer", "learning", "fine_tune"):
        content.setdefault(part, {}).setdefault("seed", content.get("seed", 0))
    try:
        settings = RunSettings.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path}: {key}: {first['msg'].removeprefix('Value error, ')}") from error
    return settings


def demo_settings(seed: int = 0, *, fast: bool = False) -> RunSettings:
    """The settings of the demo."""
    content = json.loads(json.dumps(DEMO))
    for section, changes in FAST.items() if fast else ():
        content[section] |= changes
    content["data"]["scenes"]["seed"] = seed
    for part in ("proposer", "transfer", "learning", "fine_tune"):
        content.setdefault(part, {})["seed"] = seed
    return RunSettings.model_validate(content | {"seed": seed})


def _set(content: dict[str, Any], change: str) -> None:
    key, sign, text = change.partition("=")
    if not sign or not key.strip():
        raise InputError(f"--set {change}: is not of the form key=value")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word
    *sections, name = key.strip().split(".")
    place = content
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise InputError(f"--set {change}: {section} is not a section")
    place[name] = value
