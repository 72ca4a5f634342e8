"""Experiments from a preset, a TOML file and settings on the command line.

The file changes values of the preset, and the settings change values of both.
"""

import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from zloss.names import check_name
from zloss_lab.configuration import ConfigError, from_table, overridden, to_table
from zloss_lab.json_text import MOST_LEVELS, shortened
from zloss_lab.networks import NetworkConfig
from zloss_lab.toml_tables import named_table, parse_toml, read_toml, table_names
from zloss_lab.training import Experiment

DEFAULT_PRESET = "small"
_PRESETS = resources.files("zloss_lab").joinpath("presets")


def preset_names() -> list[str]:
    """Return the names of the presets of the lab."""
    return table_names(_PRESETS)


def preset(name: str) -> dict[str, Any]:
    """Return the table of a preset."""
    try:
        check_name("preset", name, preset_names())
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return named_table(_PRESETS, name)


def preset_network(name: str) -> NetworkConfig:
    """Return the network of a preset.

    >>> preset_network("net1").sizes
    (5120, 2048, 2048, 512)
    """
    return build_experiment("", preset_name=name).network


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse settings such as `training.lr=0.1`. Values are written as in TOML, but a word needs no quotes.

    >>> parse_settings(["training.lr=0.1", "network.hidden=[64, 32]", "network.head.head=dense"])
    {'training.lr': 0.1, 'network.hidden': [64, 32], 'network.head.head': 'dense'}
    """
    parsed = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not (sign and name.strip() and value.strip()):
            raise ConfigError(
                f"{setting!r} is not a setting: write NAME=VALUE, such as training.lr=0.1"
            )
        if name.count(".") > MOST_LEVELS:
            raise ConfigError(f"{shortened(name)} has more than {MOST_LEVELS} dots")
        try:
            parsed[name.strip()] = _value(value.strip())
        except ValueError as error:
            raise ConfigError(f"{name.strip()} has no value that can be read: {error}") from error
    return parsed


def _value(text: str) -> Any:
    try:
        table = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if table.keys() == {"value"} else text  # it may have several lines


def build_experiment(
    corpus: str,
    *,
    preset_name: str = DEFAULT_PRESET,
    file: Path | None = None,
    settings: Sequence[str] = (),
) -> Experiment:
    """Return the experiment of a preset, changed by a TOML file and then by settings."""
    files = () if file is None else (read_toml(file),)
    return from_table(
        Experiment, build_table(preset_name, files, parse_settings(settings)) | {"corpus": corpus}
    )


def build_table(
    preset_name: str, tables: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a preset, changed by tables and then by settings with dotted keys: an experiment without its corpus."""
    table = preset(preset_name)
    for above in tables:
        table = _merged(table, above)
    _require_full_keys(settings)
    table = overridden(table, settings)
    if "corpus" in table:
        raise ConfigError(
            f"corpus = {table['corpus']!r} does not belong there: name the corpus by --corpus FOLDER"
        )
    return table


def _require_full_keys(settings: Mapping[str, Any]) -> None:
    """Refuse a key without its table, such as `lr`, and suggest the full key."""
    tables = {
        name: table
        for name, table in to_table(Experiment(corpus="")).items()
        if isinstance(table, dict)
    }
    for name in settings:
        if meant := [table for table, keys in tables.items() if name in keys]:
            raise ConfigError(f"unknown key: {name!r}; did you mean '{meant[0]}.{name}'?")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        name: _merged(_valid_below(below[name], value), value)
        if isinstance(value, Mapping) and isinstance(below.get(name), Mapping)
        else value
        for name, value in above.items()
    }
    return dict(below) | both


def _valid_below(below: Mapping[str, Any], above: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a table that remains valid below another table.

    If the other table names another head or loss, the options of this head and loss do not remain.
    """
    named = {name: above[name] for name in ("head", "loss") if isinstance(above.get(name), str)}
    if all(below.get(name) == value for name, value in named.items()):
        return below
    return {name: value for name, value in below.items() if name == "head"}
