"""Spaces of hyper-parameters as data: settings that all trials share, and the values to search for other keys.

    [fixed]                                                             a table over the preset
    training.schedule = "linear"
    network.head = { head = "factored", loss = "z_loss" }

    [search]                                                            keys of an experiment
    training.lr = { low = 0.03, high = 3.0, log = true }                a range, here evenly in its logarithm
    network.dropout = { low = 0.0, high = 0.5, step = 0.1 }
    network.context = { low = 4, high = 8 }                             whole numbers, because both ends are whole
    network.hidden = { choices = [[512], [512, 256]] }

The lab has one file for each loss, in the folder `spaces`. Any other file is named by its path.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from zloss.names import check_name
from zloss_lab.configuration import ConfigError, from_table, with_named_head
from zloss_lab.toml_tables import named_table, read_toml, table_names

PRESET_OF_SPACES = "ptb"  # the preset that the lab's own spaces are made for
_SPACES = resources.files("zloss_lab.tuning").joinpath("spaces")
_PARTS = ("fixed", "search")
_WORDS = ("low", "high", "log", "step", "choices")


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from `low` to `high`, both included. They are whole numbers if both ends are written as such."""

    low: int | float
    high: int | float
    log: bool = False  # whether the numbers are drawn evenly in their logarithm
    step: int | float | None = None

    def __post_init__(self) -> None:
        if not all(math.isfinite(number) for number in (self.low, self.high, self.step or 1)):
            raise ValueError(f"a range needs finite numbers, got {self}")
        if self.low > self.high:
            raise ValueError(f"low must not be above high, got low {self.low} and high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be above 0 where log is true, got {self.low}")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step must be above 0, got {self.step}")
        if self.log and self.step is not None:
            raise ValueError(f"step {self.step} and log do not go together: leave out one of them")
        steps = (self.high - self.low) / self.step if self.step else 0
        if abs(steps - round(steps)) > 1e-9:  # a step such as 0.1 has a rounding error
            raise ValueError(f"from {self.low} to {self.high} is no multiple of step {self.step}")

    @property
    def distribution(self) -> BaseDistribution:
        """The distribution that Optuna draws from."""
        if (
            isinstance(self.low, int)
            and isinstance(self.high, int)
            and isinstance(self.step, int | None)
        ):
            return IntDistribution(self.low, self.high, log=self.log, step=self.step or 1)
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    @property
    def examples(self) -> tuple[Any, ...]:
        """Both ends, which stand for all numbers in a check, in the type that Optuna draws."""
        kind = int if isinstance(self.distribution, IntDistribution) else float
        return kind(self.low), kind(self.high)

    def setting(self, drawn: Any) -> Any:
        """Return the value of the key for a value that Optuna drew."""
        return drawn


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Values of any kind to choose from."""

    choices: tuple[object, ...]

    def __post_init__(self) -> None:
        if not self.choices or len(set(self._labels)) < len(self.choices):
            raise ValueError(f"choices must be some different values, got {list(self.choices)}")

    @property
    def distribution(self) -> BaseDistribution:
        """The distribution that Optuna draws from."""
        return CategoricalDistribution(self._labels)

    @property
    def examples(self) -> tuple[Any, ...]:
        """All values, for a check."""
        return self.choices

    def setting(self, drawn: Any) -> Any:
        """Return the value of the key for a label that Optuna drew."""
        return self.choices[self._labels.index(drawn)]

    @property
    def _labels(self) -> list[CategoricalChoiceType]:
        """The choices in a form that Optuna can store: lists and tables are text."""
        return [
            json.dumps(value) if isinstance(value, list | dict) else value  # type: ignore[misc]
            for value in self.choices
        ]


Domain = Range | Choices
"""The values that a key may have in a search."""


@dataclass(frozen=True)
class Space:
    """Settings that all trials share, and the domains of the keys that are searched.

    >>> space = Space.parse({"search": {"training": {"lr": {"low": 0.1, "high": 1.0, "log": True}}}})
    >>> space.search
    {'training.lr': Range(low=0.1, high=1.0, log=True, step=None)}
    >>> Space.parse({"search": {"training": {"lr": {"lo": 0.1, "high": 1.0}}}})
    Traceback (most recent call last):
        ...
    zloss_lab.configuration.ConfigError: [search.training.lr] unknown key: 'lo'; did you mean 'low'? known: low, high,
    log, step, choices
    """

    fixed: Mapping[str, Any]
    search: Mapping[str, Domain]  # by dotted key

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> "Space":
        """Return the space of a table, as a TOML file has it. `ConfigError` says where a table is wrong."""
        for part, value in table.items():
            _check("table of a space", part, _PARTS)
            if not isinstance(value, dict):
                raise ConfigError(f"[{part}] must be a table, got {value!r}")
        if not table.get("search"):
            raise ConfigError("a space needs a table [search] with something to search")
        search = {key: _domain(key, value) for key, value in _searched_keys(table["search"])}
        return cls(with_named_head(table.get("fixed", {})), search)

    def without(self, settings: Collection[str]) -> "Space":
        """Return the same space, but without the search for these keys, or for keys in these tables."""
        left = {
            key: domain
            for key, domain in self.search.items()
            if not any(key == setting or key.startswith(f"{setting}.") for setting in settings)
        }
        if not left:
            raise ConfigError(f"nothing is left to search: {', '.join(self.search)} are all set")
        return Space(self.fixed, left)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The distributions that Optuna draws from, by key."""
        return {key: domain.distribution for key, domain in self.search.items()}

    def settings(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of keys for the values that Optuna drew."""
        return {key: self.search[key].setting(value) for key, value in drawn.items()}

    def examples(self) -> Iterator[dict[str, Any]]:
        """Yield settings in which every key takes each of its examples, one key at a time."""
        first = {key: domain.examples[0] for key, domain in self.search.items()}
        for key, domain in self.search.items():
            yield from (first | {key: value} for value in domain.examples)


def space_names() -> list[str]:
    """Return the names of the spaces that the lab has."""
    return table_names(_SPACES)


def space_table(name: str) -> dict[str, Any]:
    """Return the table of a space, given its name or the path of a TOML file."""
    if name.endswith(".toml"):
        return read_toml(Path(name))
    _check("space", name, space_names(), also=", or the path of a TOML file")
    return named_table(_SPACES, name)


def _searched_keys(table: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys, each with its range, its choices, or a wrong value that the caller refuses.

    TOML reads `training.lr = {...}` as a table in a table.
    """
    if not isinstance(table, dict) or not table.keys().isdisjoint(_WORDS):
        yield path, table
        return
    for name, value in table.items():
        yield from _searched_keys(value, f"{path}.{name}" if path else name)


def _domain(key: str, table: Any) -> Domain:
    where = f"search.{key}"
    if not isinstance(table, dict):
        raise ConfigError(
            f"[{where}] must be {{ low, high }} or {{ choices }}, got {table!r}; or put it into [fixed]"
        )
    for word in table:
        _check("key", word, _WORDS, f"[{where}] ")
    if "choices" in table:
        return from_table(Choices, table, where)
    if not {"low", "high"} <= table.keys():
        raise ConfigError(f"[{where}] needs low and high, or choices; got {table}")
    return from_table(Range, table, where)


def _check(what: str, name: str, known: Collection[str], where: str = "", also: str = "") -> None:
    try:
        check_name(what, name, known)
    except ValueError as error:
        raise ConfigError(f"{where}{error}{also}") from error
