"""The generated reference pages: settings, command line and Python API.

    python -m pairloc.cli.reference docs/reference

writes settings.md, cli.md and api.md. A test checks that the pages are up to date.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from pairloc.settings import NO_EFFECT, RunSettings, Settings

_SETTINGS = """# Settings

Every setting of a run, as written in a TOML file. The values are the recommended ones: a file names only what differs.
Settings marked with * have no effect on the result. This page is generated (`python -m pairloc.cli.reference
docs/reference`).
"""
_COMMANDS = """# Command line

Every command with its arguments and options. A command ends with exit status 0, with 1 if `doctor` found errors or
`verify` found changed files, and with 2 and one sentence for bad input. This page is generated (`python -m
pairloc.cli.reference docs/reference`).
"""


def settings_page() -> str:
    """Return the page of all settings as Markdown."""
    return "\n".join([_SETTINGS, *_group(RunSettings, "", None)]).rstrip() + "\n"


def _group(kind: type[Settings], name: str, default: Settings | None) -> list[str]:
    """A group of settings with its fields, then the groups inside it."""
    summary = " ".join((kind.__doc__ or "").split())
    lines = [
        f"## `[{name}]`" if name else "## The run",
        "",
        summary,
        "",
        "| key | default | meaning |",
        "|---|---|---|",
    ]
    groups: list[tuple[str, type[Settings], Settings | None]] = []
    for key, field in kind.model_fields.items():
        value = field.default if default is None else getattr(default, key)
        below = _group_of(field)
        if below is not None:
            groups.append((f"{name}.{key}".lstrip("."), below, value if isinstance(value, Settings) else None))
        else:
            mark = "*" if NO_EFFECT in field.metadata else ""
            lines.append(f"| `{key}`{mark} | {_default(value, field)} | {field.description or ''} |")
    lines.append("")
    for path, below, value in groups:
        lines += _group(below, path, value)
    return lines


def _group_of(field: FieldInfo) -> type[Settings] | None:
    """The settings class of a field that is a group, else None."""
    kinds: tuple[Any, ...] = getattr(field.annotation, "__args__", ()) or (field.annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)), None)


def _default(value: object, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{entry}"' for entry in value) + "]`"
    return "" if value is None else f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its name, such as `pairloc split coco17`."""
    import typer

    from pairloc.cli import app

    yield from _commands("pairloc", typer.main.get_command(app))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for part, entry in below.items():
        yield from _commands(f"{name} {part}", entry)


def cli_page() -> str:
    """Return the page of all commands as Markdown."""
    lines = [_COMMANDS]
    for name, command in commands():
        arguments = [parameter for parameter in command.params if not parameter.opts[0].startswith("-")]
        options = [parameter for parameter in command.params if parameter not in arguments]
        usage = " ".join([name, *(_metavar(argument) for argument in arguments), *("[OPTIONS]" for _ in options[:1])])
        lines += [f"## {name}", "", "```text", usage, "```", "", " ".join((command.help or "").split()), ""]
        lines += ["| argument or option | default | meaning |", "|---|---|---|"]
        for parameter in (*arguments, *options):
            shown = _metavar(parameter) if parameter in arguments else ", ".join(parameter.opts)
            repeated = " May be repeated." if parameter.multiple and "repeated" not in parameter.help else ""
            lines.append(f"| `{shown}` | {_option_default(parameter)} | {parameter.help or ''}{repeated} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _metavar(argument: Any) -> str:
    name = (argument.metavar or argument.name).strip("{}[].").upper()
    return f"{name} ..." if argument.nargs == -1 else name


def _option_default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    return "" if value in (None, False, ()) else f"`{value}`"


def main(folder: Path) -> None:
    """Write all reference pages into a folder."""
    from pairloc.cli.reference_api import api_page
    from pairloc.io import write_text

    for name, page in (("settings", settings_page()), ("cli", cli_page()), ("api", api_page())):
        write_text(folder / f"{name}.md", page)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
