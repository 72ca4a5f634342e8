"""A trial as something to train in full: the command of `zloss train` for it, and a file for its `--config`."""

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from zloss.lab.configuration import overridden, to_table
from zloss.lab.experiments import parse_settings
from zloss.lab.training import Experiment
from zloss.lab.tuning.plan import Plan
from zloss.lab.tuning.trials import Trial

_HEAD = "network.head"


def train_command(plan: Plan, trial: Trial, score: str) -> str:
    """A command that trains the network of a trial, and keeps the best of it by a score."""
    table = dict(_flat(to_table(_experiment(plan, trial, score))))
    over_preset = parse_settings(plan.settings) | trial.settings | {"training.score": score}
    # A head is set as a whole, because options of that of the preset would not go with another one.
    keys = dict(_flat(overridden(plan.searched.fixed, over_preset)))
    settings = [word for key in keys for word in ("--set", f"{key}={toml_value(table[key])}")]
    return shlex.join(["zloss", "train", "runs/best", "--corpus", plan.corpus, "--preset", plan.preset, *settings])


def train_config(plan: Plan, trial: Trial, score: str) -> str:
    """The same as a TOML file, with all keys; what is none is left out, and so is the corpus."""
    table = to_table(_experiment(plan, trial, score))
    del table["corpus"]
    origin = f"# Trial {trial.number} of the study {plan.name}. Train it with --preset {plan.preset} --config.\n"
    return origin + "\n".join(_toml_lines(table)) + "\n"


def toml_value(value: Any) -> str:
    """A value as TOML has it.

    >>> toml_value({"loss": "z_loss", "a": 0.1, "widths": [2, 3], "bias": True})
    '{loss = "z_loss", a = 0.1, widths = [2, 3], bias = true}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {toml_value(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if value is None:  # for which TOML has no word
        return '"none"'
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def _experiment(plan: Plan, trial: Trial, score: str) -> Experiment:
    return dataclasses.replace(plan, score=score).experiment(trial.settings)


def _flat(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a table by dotted keys, the head in one piece."""
    for name, value in table.items():
        key = f"{path}{name}"
        if isinstance(value, Mapping) and key != _HEAD:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _toml_lines(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Values first, then the tables below, each under its name."""
    tables = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    if path:
        yield f"\n[{path}]"
    yield from (f"{name} = {toml_value(value)}" for name, value in table.items() if name not in tables)
    for name, value in tables.items():
        yield from _toml_lines(value, f"{path}.{name}" if path else name)
