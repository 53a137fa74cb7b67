"""The generated reference page of the Python API, from the docstrings of its public names."""

import importlib
import inspect
import re
from typing import Any

PUBLIC = {
    "pairloc": ("Localizer", "Localization", "read", "evaluate"),
    "pairloc.localization.result": ("FoundImage", "FoundBox"),
    "pairloc.evaluation.corloc": ("CorLoc",),
    "pairloc.datasets.dataset": ("Dataset",),
    "pairloc.inference": ("ClassProblem", "Anchors", "Problem", "Solution", "solve"),
    "pairloc.scores": ("PairScorer", "RelationScores"),
}
_HEAD = """# Python

The public names. `from pairloc import Localizer, Localization, read, evaluate` is all that most need. This page is
generated from the docstrings (`python -m pairloc.cli.reference docs/reference`).
"""


def public_objects() -> list[tuple[str, Any]]:
    """Return every public name, with its module, and what it names."""
    return [
        (f"{module}.{name}", getattr(importlib.import_module(module), name))
        for module, names in PUBLIC.items()
        for name in names
    ]


def api_page() -> str:
    """Return the page of the public names as Markdown."""
    lines = [_HEAD]
    for name, thing in public_objects():
        lines += [f"## `{name}`", "", *_described(name.rsplit(".", 1)[-1], thing)]
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                method = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if not member.startswith("_") and (inspect.isfunction(method) or isinstance(method, property)):
                    shown = method.fget if isinstance(method, property) else method
                    lines += [f"### `{name.rsplit('.', 1)[-1]}.{member}`", "", *_described(member, shown, value)]
    return "\n".join(lines).rstrip() + "\n"


def _described(name: str, thing: Any, member: Any = None) -> list[str]:
    """Signature and docstring of a class, function or method."""
    lines = []
    if not isinstance(member, property):
        lines = ["```text", _signature(name, thing), "```", ""]
    return [*lines, *_markdown(inspect.getdoc(thing) or ""), ""]


def _signature(name: str, thing: Any) -> str:
    """The call with the names and defaults of its parameters, without types."""
    parameters = []
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        value = parameter.default
        simple = value is None or isinstance(value, bool | int | float | str)
        shown = "" if value is parameter.empty else f"={value!r}" if simple else "=..."
        parameters.append(parameter.name + shown)
    return f"{name}({', '.join(parameters)})"


def _markdown(text: str) -> list[str]:
    """A docstring with sections as numpydoc has them, as Markdown."""
    lines = text.splitlines()
    result: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        below = lines[index + 1] if index + 1 < len(lines) else ""
        if line and re.fullmatch("-{3,}", below):
            result += [f"**{line}**", ""]
            index += 2
        elif line.startswith(">>>"):
            block = []
            while index < len(lines) and lines[index].strip():
                block.append(lines[index])
                index += 1
            result += ["```pycon", *block, "```"]
        elif re.match(r"\w+(, \w+)* : ", line):
            name, _, kind = line.partition(" : ")
            result.append(f"- `{name}`: {kind}")
            index += 1
        else:
            result.append(re.sub("^    ", "  ", line))
            index += 1
    return result
