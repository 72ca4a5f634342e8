"""Configuration tables: their values are kept, and mistakes are named."""

import dataclasses
import json
from typing import Any, Literal

import pytest

from zloss.heads import HeadConfig
from zloss_lab.configuration import ConfigError, from_table, overridden, to_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    widths: tuple[int, ...] = (3, 2)
    head: HeadConfig = dataclasses.field(default_factory=HeadConfig)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    rate: float = 0.5
    count: int = 1
    limit: int | None = None
    flag: bool = False
    mode: Literal["fast", "slow"] = "fast"
    inner: Inner = dataclasses.field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"rate must be >= 0, got {self.rate}")


def test_a_table_becomes_a_config() -> None:
    table = {
        "rate": 2,
        "limit": 3,
        "inner": {"widths": [1], "head": {"head": "dense", "loss": "z_loss", "a": 0.3}},
    }
    config = from_table(Outer, table)
    head = HeadConfig(head="dense", loss="z_loss", options={"a": 0.3})
    assert config == Outer(rate=2.0, limit=3, inner=Inner(widths=(1,), head=head))
    assert isinstance(config.rate, float)


@pytest.mark.parametrize("config", [Outer(), Outer(limit=4, mode="slow", inner=Inner(widths=()))])
def test_a_round_trip_through_json(config: Outer) -> None:
    assert from_table(Outer, json.loads(json.dumps(to_table(config)))) == config


def test_none_is_a_word_where_it_is_allowed() -> None:
    """TOML has no null."""
    assert from_table(Outer, {"limit": "none"}) == from_table(Outer, {"limit": None})
    with pytest.raises(ConfigError, match="count must be int, got 'none'"):
        from_table(Outer, {"count": "none"})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"raet": 1}, "unknown key: 'raet'; did you mean 'rate'\\?"),
        ({"inner": {"width": [1]}}, r"\[inner\] unknown key: 'width'; did you mean 'widths'\?"),
        (
            {"inner": {"head": {"head": "dens"}}},
            r"\[inner.head\] unknown head: 'dens'; did you mean 'dense'\?",
        ),
        (
            {"inner": {"head": {"loss": "softmax"}}},
            r"\[inner.head\] the factored head cannot train softmax",
        ),
        ({"rate": "fast"}, "rate must be float, got 'fast'"),
        ({"rate": 10**400}, "rate must be float, got 1000"),
        ({"count": 1.5}, "count must be int, got 1.5"),
        ({"count": True}, "count must be int, got True"),
        ({"limit": "x"}, "limit must be int or none, got 'x'"),
        ({"mode": "medium"}, "mode must be 'fast' or 'slow', got 'medium'"),
        ({"inner": {"widths": [1, "x"]}}, "inner.widths must be a list of int"),
        ({"inner": 3}, r"\[inner\] must be a table, got 3"),
        ({"rate": -1.0}, "rate must be >= 0, got -1.0"),
    ],
)
def test_mistakes_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_table(Outer, table)


def test_what_has_no_default_must_be_there() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Needy:
        place: str
        size: int = 1

    with pytest.raises(ConfigError, match=r"^\[flat\] missing key: 'place'$"):
        from_table(Needy, {"size": 2}, "flat")
    with pytest.raises(ConfigError, match=r"^a configuration must be a table, got \[\]$"):
        from_table(Needy, [])  # type: ignore[arg-type]


def test_settings_go_over_a_table() -> None:
    table = {"inner": {"widths": [1]}, "rate": 1.0}
    new = overridden(table, {"inner.head.a": 0.1, "rate": 2.0, "count": 5})
    assert new == {"inner": {"widths": [1], "head": {"a": 0.1}}, "rate": 2.0, "count": 5}
    assert table == {"inner": {"widths": [1]}, "rate": 1.0}
    with pytest.raises(ConfigError, match=r"rate\.x cannot be set: rate is 1\.0, not a table"):
        overridden(table, {"rate.x": 1})
