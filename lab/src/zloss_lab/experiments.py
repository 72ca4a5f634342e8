"""Experiments from a preset, a TOML file and settings on the command line.

The file changes values of the preset, and the settings change values of both.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from zloss.heads.config import HEADS, HeadConfig
from zloss.names import check_name
from zloss_lab.configuration import (
    ConfigError,
    dotted,
    from_table,
    overridden,
    to_table,
    with_named_head,
)
from zloss_lab.json_text import MOST_LEVELS, shortened
from zloss_lab.networks import NetworkConfig
from zloss_lab.toml_tables import named_table, parse_toml, read_toml, table_names
from zloss_lab.training import Experiment

DEFAULT_PRESET = "small"
_HEAD, _OUTPUT_LR = "network.head", "training.output_lr"
# Learning rate of the output layer for a softmax, as in reproduction/large_text_models.toml. On a small text (60,000
# words of Penn Treebank, 2 epochs, one seed) rates from 0.2 to 4 were about equal for three heads.
_SOFTMAX_OUTPUT_LR = 1.0
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

    A head may be set as a whole by its name. Its options then have their defaults.

    >>> parse_settings(["network.head=sampled", "network.head.num_samples=512"])
    {'network.head': {'head': 'sampled'}, 'network.head.num_samples': 512}
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
    if isinstance(parsed.get(_HEAD), str):
        parsed[_HEAD] = {"head": parsed[_HEAD]}
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
    parsed = parse_settings(settings)
    table = build_table(preset_name, files, parsed) | {"corpus": corpus}
    try:
        return from_table(Experiment, table)
    except ConfigError as error:
        name = parsed.get(f"{_HEAD}.head")
        if (
            not isinstance(name, str)
            or name not in HEADS
            or not str(error).startswith(f"[{_HEAD}]")
        ):
            raise
        # The loss and the options below were for another head.
        raise ConfigError(
            f"{error}; to take this head with a loss and options of its own: --set {_HEAD}={name}"
        ) from error


def head_changes(
    preset_name: str = DEFAULT_PRESET, *, file: Path | None = None, settings: Sequence[str] = ()
) -> list[str]:
    """Return lines about what another head than the one of the preset changes beside itself.

    >>> for line in head_changes("ptb", settings=["network.head=sampled"]):
    ...     print(line)
    head sampled: left out a = 0.2, b = 10.0 of head factored, z_loss
    head sampled: training.output_lr is 1.0, not 20.0
    """
    files = [] if file is None else [read_toml(file)]
    layers = [
        build_table(preset_name, [], {}),
        build_table(preset_name, files, {}),
        build_table(preset_name, files, parse_settings(settings)),
    ]
    lines = [line for pair in pairwise(layers) for line in _left_out(*pair)]
    rates = [layer["training"]["output_lr"] for layer in (layers[0], layers[-1])]
    if rates[0] != rates[1] and not _is_set(_OUTPUT_LR, files, parse_settings(settings)):
        name = _head_name(layers[-1]["network"]["head"])
        lines.append(f"head {name}: {_OUTPUT_LR} is {rates[1]}, not {rates[0]}")
    return lines


def _left_out(below: Mapping[str, Any], above: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line with the options of a head that the head over it does not have, and how to keep what fits."""
    before, after = (table["network"]["head"] for table in (below, above))
    lost = {name: value for name, value in before.items() if name not in {"loss", *after}}
    if lost:
        values = ", ".join(f"{name} = {value}" for name, value in lost.items())
        fitting = [name for name, value in lost.items() if _fits({**after, name: value})]
        keep = "".join(f" --set {_HEAD}.{name}={lost[name]}" for name in fitting)
        yield (
            f"head {_head_name(after)}: left out {values} of head {_head_name(before)}"
            f"{f'; to keep what fits:{keep}' if keep else ''}"
        )


def _head_name(table: Mapping[str, Any]) -> str:
    return ", ".join(str(table[name]) for name in ("head", "loss") if name in table)


def _fits(table: Mapping[str, Any]) -> bool:
    """Return whether the options of a head are its own."""
    try:
        HeadConfig.from_dict(table)
    except ValueError:
        return False
    return True


def build_table(
    preset_name: str, tables: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a preset, changed by tables and then by settings with dotted keys: an experiment without its corpus.

    The output rates of the presets are for the Z-loss, and a softmax diverges at them. Where a head is named without a
    loss, its loss is a softmax, and nobody sets the rate, the rate is that of a softmax.
    """
    table = preset(preset_name)
    for above in map(with_named_head, tables):
        table = _merged(table, above)
    _require_full_keys(settings)
    table = overridden(table, settings)
    if not _is_set(_OUTPUT_LR, tables, settings) and _is_softmax_by_default(table):
        table = overridden(table, {_OUTPUT_LR: _SOFTMAX_OUTPUT_LR})
    if "corpus" in table:
        raise ConfigError(
            f"corpus = {table['corpus']!r} does not belong there: name the corpus by --corpus FOLDER"
        )
    return table


def _is_set(key: str, tables: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> bool:
    """Return whether tables or settings set a key, itself or in a table around it."""
    return any(key in dict(dotted(one)) for one in (*tables, overridden({}, settings)))


def _is_softmax_by_default(table: Mapping[str, Any]) -> bool:
    keys = dict(dotted(table))
    name = keys.get(f"{_HEAD}.head")
    kind = HEADS.get(name) if isinstance(name, str) else None
    return kind is not None and f"{_HEAD}.loss" not in keys and kind.losses[0] == "softmax"


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
