"""Migration of settings written by earlier versions: one table of renamed, moved and removed keys.

Old weights and runs keep working, because their settings are converted when they are read. A user's TOML file is not
converted; an error names the new name of its first outdated key.
"""

from collections.abc import Mapping
from typing import Any

_TRAINING = ("steps", "pairs", "optimizer", "lr", "foreground", "background", "held_out")
_REMOVED = ("momentum", "weight_decay", "clip", "patience", "looks", "pair_loss")

# Old key -> new key, by section; None if the key was removed.
MOVED: dict[str, dict[str, str | None]] = {
    "proposer": dict.fromkeys(("shared", "backbone_lr", "schedule", "weight_decay", "clip"))
    | {"nearby": "min_background_iou"},
    "transfer": dict.fromkeys(_REMOVED)
    | {name: f"training.{name}" for name in _TRAINING}
    | {
        "features": "features.kind",
        "dimensions": "features.dimensions",
        "geometry": "features.geometry",
        "unary": "unary.fit",
        "unary_decay": "unary.decay",
        "tight_iou": "unary.tight_iou",
        "relation": "pairs.kind",
    },
    "localization": dict.fromkeys((*_REMOVED, "init", "train_unary", "train_pairs"))
    | {name: f"training.{name}" for name in (*_TRAINING, "foreground_iou", "negatives")}
    | {
        "features": "features.kind",
        "dimensions": "features.dimensions",
        "geometry": "features.geometry",
        "unary": "unary.fit",
        "unary_decay": "unary.decay",
        "rivals": "unary.other_tag_weight",
        "oversize": "unary.area_penalty",
        "largest": "unary.max_area",
        "relation": "pairs.kind",
        "alpha": "energy.alpha",
        "alpha_scale": "energy.alpha_scale",
        "lambda1": "energy.lambda1",
        "lambda2": "energy.lambda2",
        "group": "energy.max_compared_bags",
        "k": "solver.k",
        "solver": "solver.name",
        "iterations": "solver.iterations",
        "epochs": "solver.epochs",
        "refine": "boxes.voting_iou",
    },
    "fine_tune": {"sure": "instance_threshold", "nearby": None},
    "mi_svm": {"max_area": None},
    "run": {"transfer_images": "transfer.images", "learning": "localization"},
}
# Defaults of earlier versions for keys that an old file omits, where the default has changed.
_OLD_DEFAULTS: dict[str, dict[str, Any]] = {
    "transfer": {
        "features": "transfer", "dimensions": 0, "geometry": False, "unary": "sampled", "relation": "paper",
        "steps": 1500, "pairs": 32, "foreground_iou": 0.5,
    },
    "localization": {
        "features": "class", "dimensions": 0, "geometry": False, "unary": "sampled", "relation": "paper", "rounds": 3,
        "lambda1": 0.5, "rivals": 0.0, "oversize": 0.0, "largest": 1.0, "refine": 0.0, "group": 0,
        "unary_decay": 0.01, "unary.trust": 0.0, "unary.combination": "mixed",
        "exclusion_iou": 1.0,
    },
}  # fmt: skip
_VALUES = {"pairs.kind": {"paper": "relation"}}  # renamed values


def migrated(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings of a section to the current keys; current settings are returned unchanged."""
    moved = MOVED[section]
    if not is_old(section, settings):
        return dict(settings)
    converted: dict[str, Any] = {}
    for key, value in (_OLD_DEFAULTS.get(section, {}) | dict(settings)).items():
        new = moved.get(key, key)
        if new is not None:
            *groups, name = new.split(".")
            table = converted
            for group in groups:
                table = table.setdefault(group, {})
            table[name] = _VALUES.get(new, {}).get(value, value) if isinstance(value, str) else value
    return converted


def is_old(section: str, settings: Mapping[str, Any]) -> bool:
    """Return whether settings contain an outdated key; keys such as `features` were values and are groups now."""
    return any(key in MOVED[section] and not isinstance(value, dict) for key, value in settings.items())


def migrated_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings of a whole run that an earlier version wrote."""
    converted = dict(settings)
    if "learning" in converted:
        converted["localization"] = converted.pop("learning")
    images = converted.pop("transfer_images", None)
    for section in ("proposer", "transfer", "localization", "fine_tune", "mi_svm"):
        if isinstance(converted.get(section), dict):
            converted[section] = migrated(section, converted[section])
    if images is not None:
        converted.setdefault("transfer", {})["images"] = images
    return converted


def moved_key(content: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """Return the first outdated key of a run's TOML file and its new name, None if the key was removed."""
    for old, new in MOVED["run"].items():
        if old == "learning" and isinstance(content.get(old), dict):
            for key in content[old]:
                new_key = MOVED["localization"].get(key, key)
                return f"learning.{key}", None if new_key is None else f"localization.{new_key}"
        if old in content:
            return old, new
    for section in ("proposer", "transfer", "localization", "fine_tune", "mi_svm"):
        values = content.get(section)
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in MOVED[section] and not isinstance(value, dict):
                new_key = MOVED[section][key]
                return f"{section}.{key}", None if new_key is None else f"{section}.{new_key}"
    return None
