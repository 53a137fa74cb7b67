"""The generated reference page of the Python API, from the docstrings of its public names."""

import importlib
import inspect
import re
from typing import Any

PUBLIC = {
    "pairloc": ("Localizer", "Localization", "read", "evaluate"),
    "pairloc.errors": ("InputError",),
    "pairloc.localization.result": ("FoundImage", "FoundBox"),
    "pairloc.evaluation.corloc": ("CorLoc",),
    "pairloc.datasets.dataset": ("Dataset",),
    "pairloc.datasets.scored": ("ScoredBoxes",),
    "pairloc.inference": ("ClassProblem", "Relocalization", "Anchors", "Problem", "Solution", "solve"),
    "pairloc.scores": ("PairScorer", "RelationScores"),
}
# Members that other modules use, but users do not need.
_INTERNAL = {
    "Localization": {"of"},
    "ClassProblem": {"anchored", "against", "checked", "weight"},
    "Problem": {"rounding"},
    "RelationScores": {"kernel", "project"},
}
_HEAD = """# Python

The public names. `from pairloc import Localizer, Localization, read, evaluate` is all that most need. This page is
generated from the docstrings (`python -m pairloc.cli.reference docs/reference`).
"""


def public_objects() -> list[tuple[str, Any]]:
    """Return every public name, with its module, and its object."""
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
                hidden = member.startswith("_") or member in _INTERNAL.get(thing.__name__, ())
                if not hidden and (inspect.isfunction(method) or isinstance(method, property)):
                    shown = method.fget if isinstance(method, property) else method
                    lines += [f"### `{name.rsplit('.', 1)[-1]}.{member}`", "", *_described(member, shown, value)]
    return "\n".join(lines).rstrip() + "\n"


def _described(name: str, thing: Any, member: Any = None) -> list[str]:
    """Signature and docstring of a class, function or method."""
    lines = []
    if not isinstance(member, property):
        lines = ["```text", _signature(name, thing), "```", ""]
    return [*lines, *_markdown(inspect.getdoc(thing) or "", _types(thing)), ""]


def _types(thing: Any) -> dict[str, str]:
    """The types of the parameters of a class or function, or of the fields of a dataclass, as text."""
    annotations = dict(getattr(thing, "__annotations__", {}))
    if inspect.isclass(thing):
        annotations |= getattr(vars(thing).get("__init__"), "__annotations__", {})
    return {name: _type(annotation) for name, annotation in annotations.items()}


def _type(annotation: Any) -> str:
    """A type as it is written, without the modules of names."""
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", inspect.formatannotation(annotation)).strip("'")


def _signature(name: str, thing: Any) -> str:
    """The call with the names and defaults of its parameters, without types."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return f"{name}(message)"
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


def _markdown(text: str, types: dict[str, str]) -> list[str]:
    """A docstring with sections as numpydoc has them, as Markdown; parameters get their types."""
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
            shown = ", ".join(dict.fromkeys(types[part] for part in name.split(", ") if part in types))
            result.append(f"- `{name}` (`{shown}`): {kind}" if shown else f"- `{name}`: {kind}")
            index += 1
        else:
            result.append(re.sub("^    ", "  ", line))
            index += 1
    return result
