"""A check of names that a user chooses from a list, such as heads, losses and keys of a configuration."""

import difflib
from collections.abc import Iterable

from zloss.inputs import shown


def check_name(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not known, and suggest the nearest one that is.

    >>> check_name("head", "dens", ["dense", "factored"])
    Traceback (most recent call last):
        ...
    ValueError: unknown head: 'dens'; did you mean 'dense'? known: dense, factored
    """
    known = list(known)
    if not isinstance(name, str) or name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(
            f"unknown {what}: {shown(name)}; {hint}known: {', '.join(known) or 'none'}"
        )
