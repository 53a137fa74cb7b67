"""The error raised for unusable input, and helpers for messages."""

from collections.abc import Sequence

_MAX_NAMES = 10  # maximum number of names in a message


class InputError(Exception):
    """Raised when a file, setting or argument from the user cannot be used.

    The message is one sentence for the user: which file, line or key; what was found; what to do.
    The command line prints it without a traceback and exits with status 2.

    >>> try:
    ...     raise InputError("tags.csv: there is no such file")
    ... except InputError as error:
    ...     print(error)
    tags.csv: there is no such file
    """


def shown(value: object) -> str:
    """Format `value` for an error message; the text stays short even for hostile input.

    >>> shown([1] * 1000)
    'a list of 1000'
    """
    if (
        isinstance(value, list | tuple)
        and len(value) <= 6
        and all(isinstance(v, int | float | str | None) for v in value)
    ):
        return f"[{', '.join(shown(entry) for entry in value)}]"
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return "a huge whole number"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def abbreviated(names: Sequence[str]) -> str:
    """Join the first names of a list and count the others."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return "; ".join(names[:_MAX_NAMES]) + more
