"""What goes wrong with what a user gave us."""


class InputError(Exception):
    """The input cannot be used.

    The message is one sentence for the user: which file, which line or key, what was found, what to do.
    The command line prints it and exits with status 2; nobody sees a traceback.
    """


def shown(value: object) -> str:
    """`value` for an error message: short, whatever a hostile file put there."""
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
