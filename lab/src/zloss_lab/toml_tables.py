"""Tables in TOML files. A table that comes with the lab has a name, and a table of the user has a path."""

import tomllib
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from zloss_lab.configuration import ConfigError
from zloss_lab.json_text import TOO_DEEP, require_flat

_ENDING = ".toml"
_MOST_BYTES = 1 << 18  # of a file; the longest of the lab has 2,000
_MOST_DOTS = 1000  # in a line; the time that `tomllib` takes for a dotted key grows with the square of their number


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text, or raise a `ValueError` with the reason why it has none.

    The error for a text that is not TOML is `tomllib.TOMLDecodeError`, a kind of `ValueError`.

    >>> parse_toml("training.lr = 0.1")
    {'training': {'lr': 0.1}}
    """
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it has {len(text):,} characters, and at most {_MOST_BYTES:,} are read")
    if max((line.count(".") for line in text.splitlines()), default=0) > _MOST_DOTS:
        raise ValueError(f"a line has more than {_MOST_DOTS} dots")
    try:
        table = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    require_flat(table)
    return table


def table_names(folder: Traversable) -> list[str]:
    """Return the names of the tables in a folder of the lab, in alphabetical order."""
    names = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))


def named_table(folder: Traversable, name: str) -> dict[str, Any]:
    """Return a table of a folder of the lab or of another package."""
    return parse_toml(folder.joinpath(f"{name}{_ENDING}").read_text(encoding="utf-8"))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is not an ordinary file")
        with path.open(encoding="utf-8") as file:
            return parse_toml(file.read(_MOST_BYTES + 1))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read as TOML: {reason}") from error
