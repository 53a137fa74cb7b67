"""Settings that were written before: one table of keys that moved, read by whoever opens an old file.

Weights and runs made before keep working, since their settings are converted on reading. A user's own TOML is not
converted: its author is told the new name of the first key that moved.
"""

from collections.abc import Mapping
from typing import Any

_TRAINING = ("steps", "pairs", "optimizer", "lr", "foreground", "background", "held_out")
_GONE = ("momentum", "weight_decay", "clip", "patience", "looks", "pair_loss")

# Old key -> new key, by the section it stood in; None where nothing took its place.
MOVED: dict[str, dict[str, str | None]] = {
    "proposer": dict.fromkeys(("shared", "backbone_lr", "schedule", "weight_decay", "clip"))
    | {"nearby": "min_background_iou"},
    "transfer": dict.fromkeys(_GONE)
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
    "localization": dict.fromkeys((*_GONE, "init", "train_unary", "train_pairs"))
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
    "run": {"transfer_images": "transfer.images", "learning": "localization"},
}
# What an old file meant by leaving a key out, where the default is another one now.
_OLD_DEFAULTS: dict[str, dict[str, Any]] = {
    "transfer": {
        "features": "transfer", "dimensions": 0, "geometry": False, "unary": "sampled", "relation": "paper",
        "steps": 1500, "pairs": 32, "foreground_iou": 0.5,
    },
    "localization": {
        "features": "class", "dimensions": 0, "geometry": False, "unary": "sampled", "relation": "paper", "rounds": 3,
        "lambda1": 0.5, "rivals": 0.0, "oversize": 0.0, "largest": 1.0, "refine": 0.0, "group": 0,
    },
}  # fmt: skip
_VALUES = {"pairs.kind": {"paper": "relation"}}  # values that got another name


def migrated(section: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a section as they are called now; settings of today come back as they are."""
    moved = MOVED[section]
    if not is_old(section, settings):
        return dict(settings)
    found: dict[str, Any] = {}
    for key, value in (_OLD_DEFAULTS.get(section, {}) | dict(settings)).items():
        new = moved.get(key, key)
        if new is not None:
            *groups, name = new.split(".")
            place = found
            for group in groups:
                place = place.setdefault(group, {})
            place[name] = _VALUES.get(new, {}).get(value, value) if isinstance(value, str) else value
    return found


def is_old(section: str, settings: Mapping[str, Any]) -> bool:
    """Whether settings hold a key that moved. `features` and the like are groups now and were values before."""
    return any(key in MOVED[section] and not isinstance(value, dict) for key, value in settings.items())


def migrated_run(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a whole run, as a run made before wrote them."""
    found = dict(settings)
    if "learning" in found:
        found["localization"] = found.pop("learning")
    images = found.pop("transfer_images", None)
    for section in ("proposer", "transfer", "localization", "fine_tune"):
        if isinstance(found.get(section), dict):
            found[section] = migrated(section, found[section])
    if images is not None:
        found.setdefault("transfer", {})["images"] = images
    return found


def moved_key(content: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """The first key of a run's TOML that has another name now, and that name."""
    for old, new in MOVED["run"].items():
        if old == "learning" and isinstance(content.get(old), dict):
            for key in content[old]:
                place = MOVED["localization"].get(key, key)
                return f"learning.{key}", None if place is None else f"localization.{place}"
        if old in content:
            return old, new
    for section in ("proposer", "transfer", "localization", "fine_tune"):
        values = content.get(section)
        for key, value in values.items() if isinstance(values, dict) else ():
            if key in MOVED[section] and not isinstance(value, dict):
                place = MOVED[section][key]
                return f"{section}.{key}", None if place is None else f"{section}.{place}"
    return None
