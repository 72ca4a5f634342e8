"""A trial as a whole training: the command `zloss train` for it, and a file for the option `--config`."""

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any

from zloss_lab.configuration import dotted, overridden, to_table
from zloss_lab.experiments import parse_settings
from zloss_lab.training import Experiment
from zloss_lab.tuning.plan import StudyPlan
from zloss_lab.tuning.trials import Trial

_HEAD = "network.head"


def train_command(plan: StudyPlan, trial: Trial, score: str) -> str:
    """Return a command that trains the network of a trial, and keeps the checkpoint that is best by a score."""
    table = to_table(_experiment(plan, trial, score))
    over_preset = parse_settings(plan.settings) | trial.settings | {"training.score": score}
    # A head is set as a whole, because the options of the preset's head may not fit another head.
    changed = (key for key, _ in dotted(overridden(plan.searched.fixed, over_preset)))
    keys = dict.fromkeys(_HEAD if key.startswith(f"{_HEAD}.") else key for key in changed)
    values = {key: toml_value(reduce(getitem, key.split("."), table)) for key in keys}
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    return shlex.join(
        ["zloss", "train", "runs/best", "--corpus", plan.corpus, "--preset", plan.preset, *settings]
    )


def train_config(plan: StudyPlan, trial: Trial, score: str) -> str:
    """Return the same training as the text of a TOML file, with all keys but the corpus. None becomes "none"."""
    table = to_table(_experiment(plan, trial, score))
    del table["corpus"]
    origin = f"# Trial {trial.number} of the study {plan.name!r}. Train it with --preset {plan.preset} --config.\n"
    return origin + "\n".join(_toml_lines(table)) + "\n"


def toml_value(value: Any) -> str:
    """Return a value in the notation of TOML.

    >>> toml_value({"loss": "z_loss", "a": 0.1, "widths": [2, 3], "bias": True})
    '{loss = "z_loss", a = 0.1, widths = [2, 3], bias = true}'
    """
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{name} = {toml_value(inner)}" for name, inner in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if value is None:  # TOML has no word for it
        return '"none"'
    return json.dumps(value) if isinstance(value, str | bool) else repr(value)


def _experiment(plan: StudyPlan, trial: Trial, score: str) -> Experiment:
    return dataclasses.replace(plan, score=score).experiment(trial.settings)


def _toml_lines(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the lines of a table: its values first, then the tables inside of it, each under its name."""
    tables = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    if path:
        yield f"\n[{path}]"
    yield from (
        f"{name} = {toml_value(value)}" for name, value in table.items() if name not in tables
    )
    for name, value in tables.items():
        yield from _toml_lines(value, f"{path}.{name}" if path else name)
