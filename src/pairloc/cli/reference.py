"""The reference page of all settings, made from the settings themselves: docs/settings.md.

    python -m pairloc.cli.reference > docs/settings.md

A test checks that the page is what this prints.
"""

from typing import Any

from pydantic.fields import FieldInfo

from pairloc.settings import NO_EFFECT, RunSettings, Settings

_HEAD = """# Settings

Every setting of a run, as a TOML file has it. The values are the recommended ones: a file names only what differs. This
page is generated (`python -m pairloc.cli.reference`). Settings marked with * have no effect on the result.
"""


def settings_page() -> str:
    """The page as Markdown."""
    parts = [_HEAD, *_section(RunSettings, "", None)]
    return "\n".join(parts).rstrip() + "\n"


def _section(kind: type[Settings], name: str, default: Settings | None) -> list[str]:
    """A group of settings with its fields, then the groups inside it."""
    summary = " ".join((kind.__doc__ or "").split())
    lines = [f"## `[{name}]`" if name else "## The run", "", summary, "", "| key | default | |", "|---|---|---|"]
    groups: list[tuple[str, type[Settings], Settings | None]] = []
    for key, field in kind.model_fields.items():
        value = field.default if default is None else getattr(default, key)
        below = _group_of(field)
        if below is not None:
            groups.append((f"{name}.{key}".lstrip("."), below, value if isinstance(value, Settings) else None))
        else:
            mark = "*" if NO_EFFECT in field.metadata else ""
            lines.append(f"| `{key}`{mark} | {_shown(value, field)} | {field.description or ''} |")
    lines.append("")
    for place, below, value in groups:
        lines += _section(below, place, value)
    return lines


def _group_of(field: FieldInfo) -> type[Settings] | None:
    """The settings a field holds, where it is a group."""
    kinds: tuple[Any, ...] = getattr(field.annotation, "__args__", ()) or (field.annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)


def _shown(value: object, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{entry}"' for entry in value) + "]`"
    return "" if value is None else f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


if __name__ == "__main__":
    print(settings_page(), end="")
