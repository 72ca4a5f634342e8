"""Tables in TOML files. A table that comes with the lab has a name, and a table of the user has a path."""

import tomllib
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from zloss_lab.configuration import ConfigError

_ENDING = ".toml"


def table_names(folder: Traversable) -> list[str]:
    """Return the names of the tables in a folder of the lab, in alphabetical order."""
    names = (file.name for file in folder.iterdir())
    return sorted(name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))


def named_table(folder: Traversable, name: str) -> dict[str, Any]:
    """Return a table of a folder of the lab."""
    return tomllib.loads(folder.joinpath(f"{name}{_ENDING}").read_text(encoding="utf-8"))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read as TOML: {reason}") from error
