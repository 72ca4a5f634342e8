"""Conversion of tables (from TOML, JSON or the command line) to frozen dataclasses and back.

A config is a frozen, keyword-only dataclass. The keys of its table are the names of its fields. An unknown key is an
error that suggests the nearest known key. A value of the wrong type is an error too. Only two conversions are silent:
an integer becomes a float, and a list becomes a tuple, where the field has that type.
"""

import dataclasses
import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from zloss.heads.config import HeadConfig
from zloss.names import check_name
from zloss_lab.json_text import shortened

Config = TypeVar("Config")


class ConfigError(ValueError):
    """A mistake in a configuration, which the user has to correct."""


def from_table(cls: type[Config], table: Mapping[str, Any], where: str = "") -> Config:
    """Return an instance of the dataclass `cls` from a table; `where` is the name of the table in error messages.

    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Oven:
    ...     heat: float = 180.0
    >>> from_table(Oven, {"heat": 200})
    Oven(heat=200.0)
    >>> from_table(Oven, {"heet": 200}, "oven")
    Traceback (most recent call last):
        ...
    zloss_lab.configuration.ConfigError: [oven] unknown key: 'heet'; did you mean 'heat'? known: heat
    """
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"{f'[{where}]' if where else 'a configuration'} must be a table, got {shortened(table)}"
        )
    with _explained(where):
        if cls is HeadConfig:
            return cast(Config, HeadConfig.from_dict(table))
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        hints = {name: hint for name, hint in get_type_hints(cls).items() if name in names}
        for key in table:
            check_name("key", key, sorted(hints))
        if missing := [name for name in _required(cls) if name not in table]:
            raise ValueError(f"missing key: {', '.join(map(repr, missing))}")
        path = f"{where}." if where else ""
        return cls(
            **{key: _converted(value, hints[key], path + key) for key, value in table.items()}
        )


def to_table(config: Any) -> dict[str, Any]:
    """Return the table of a config, for `from_table`: values are valid JSON, and all fields are written.

    A table with all fields keeps its meaning when a default changes later.
    """
    if isinstance(config, HeadConfig):
        return config.to_dict()
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def overridden(table: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with new values at dotted keys, such as `{"training.lr": 0.1}`.

    A table is set before the keys in it, whatever their order.

    >>> overridden({"training": {"lr": 1.0, "seed": 0}}, {"training.lr": 0.1})
    {'training': {'lr': 0.1, 'seed': 0}}
    >>> overridden({}, {"oven.heat": 200, "oven": {"door": "shut"}})
    {'oven': {'door': 'shut', 'heat': 200}}
    """
    result = dict(table)
    for path, value in sorted(settings.items(), key=lambda setting: setting[0].count(".")):
        first, _, rest = path.partition(".")
        inner = result.get(first, {})
        if rest and not isinstance(inner, Mapping):
            raise ConfigError(f"{path} cannot be set: {first} is {inner!r}, not a table")
        result[first] = overridden(inner, {rest: value}) if rest else value
    return result


def with_named_head(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of an experiment, or a part of one, in which a head given by its name alone is a table.

    >>> with_named_head({"network": {"context": 4, "head": "sampled"}})
    {'network': {'context': 4, 'head': {'head': 'sampled'}}}
    """
    network = table.get("network")
    if not isinstance(network, Mapping) or not isinstance(network.get("head"), str):
        return dict(table)
    return {**table, "network": {**network, "head": {"head": network["head"]}}}


def dotted(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a table with their values.

    >>> dict(dotted({"training": {"lr": 0.1}, "device": "cpu"}))
    {'training.lr': 0.1, 'device': 'cpu'}
    """
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{path}{key}.")
        else:
            yield path + key, value


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the pairs of values that differ between two tables, by dotted key; a missing value is None.

    >>> differing({"training": {"lr": 1.0, "seed": 0}}, {"training": {"lr": 0.1, "seed": 0}})
    {'training.lr': (1.0, 0.1)}
    """
    old, new = dict(dotted(before)), dict(dotted(now))
    pairs = {key: (old.get(key), new.get(key)) for key in old | new}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _required(cls: type[Any]) -> Iterator[str]:
    """Yield the names of the fields that have no default."""
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            yield field.name


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_table(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _converted(value: Any, hint: Any, where: str) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else from_table(hint, value, where)
    converted = _as(hint, value, where)
    if converted is _NO:
        raise ConfigError(f"{where} must be {_described(hint)}, got {shortened(value)}")
    return converted


_NO = object()


def _as(hint: Any, value: Any, where: str) -> Any:
    """Return the value converted to the type, or `_NO` if it does not fit."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        converted = (_as(option, value, where) for option in get_args(hint))
        return next((found for found in converted if found is not _NO), _NO)
    if origin is Literal:
        return value if value in get_args(hint) else _NO
    if origin in (tuple, list):
        return _as_sequence(hint, value, where)
    if origin in (dict, Mapping):
        return _as_mapping(hint, value, where)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return from_table(cast(type[Any], hint), value, where)
    return _as_scalar(hint, value)


def _as_scalar(hint: Any, value: Any) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return _NO if abs(value) > sys.float_info.max else float(value)
    if hint is int and isinstance(value, bool):
        return _NO
    if hint is types.NoneType and value == "none":  # TOML has no null
        return None
    return value if isinstance(value, hint) else _NO


def _as_sequence(hint: Any, value: Any, where: str) -> Any:
    """Return the value as a list or tuple, or `_NO`; a tuple type without an ellipsis has a fixed length."""
    kinds = get_args(hint)
    if not isinstance(value, list | tuple):
        return _NO
    if get_origin(hint) is list or kinds[1:] == (...,):
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        return _NO
    items = [
        _as(kind, item, f"{where}[{place}]")
        for place, (kind, item) in enumerate(zip(kinds, value, strict=True))
    ]
    return _NO if any(item is _NO for item in items) else get_origin(hint)(items)


def _as_mapping(hint: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        return _NO
    kind = get_args(hint)[1]
    items = {key: _as(kind, inner, f"{where}.{key}") for key, inner in value.items()}
    return _NO if any(item is _NO for item in items.values()) else items


def _described(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_described, arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        return f"a list of {_described(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)} values: {', '.join(map(_described, arguments))}"
    if origin in (dict, Mapping):
        return "a table" if arguments[1] is Any else f"a table of {_described(arguments[1])}"
    if hint is Any or hint is types.NoneType:
        return "anything" if hint is Any else "none"
    return "a table" if dataclasses.is_dataclass(hint) else str(hint.__name__)


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Add the name of the table to an error."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"[{where}] {error}" if where else str(error)) from error
