"""The learning rate of a model of table 2. Several are tried for a short time, and the best on validation is taken.

All seeds of a model have the same rate, so a rate that the records of the model have is taken without a trial.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reproduction.budgets import Budget
from reproduction.running.chosen import Chosen, digest_of
from reproduction.running.large_texts.chosen_models import RATES, with_rate
from reproduction.running.large_texts.run_folders import reserved
from reproduction.running.large_texts.text import LargeText
from zloss_lab.configuration import to_table
from zloss_lab.runs import Run
from zloss_lab.training import DivergedError
from zloss_lab.tuning.trials import cost

_SEED = 0  # of the short trainings


@dataclass(frozen=True)
class RatedModel:
    """A model with its learning rate, and the rates that were tried for it."""

    chosen: Chosen
    tried: Sequence[float] = ()


def known_rate(text: LargeText, model: str) -> RatedModel | None:
    """Return a model with the rate of its records, or its only rate; None if several rates must be tried.

    Records that will be replaced with any of the rates are announced.
    """
    choices = _choices(text, model)
    text.announce_replacements(model, choices)
    return RatedModel(choices[0]) if text.rates is None else _recorded(text, model, choices)


def try_rates(text: LargeText, model: str) -> RatedModel:
    """Return a model with the learning rate that validates best."""
    assert text.rates is not None
    choices = _choices(text, model)
    # Another process that tries the same rates waits here, and then finds these runs.
    with reserved(_place(text, model)):
        if recorded := _recorded(text, model, choices):
            return recorded
        costs = [_try(text, model, one, text.rates.seconds) for one in choices]
    if not math.isfinite(min(costs)):
        raise DivergedError("it diverges with all learning rates")
    return RatedModel(choices[costs.index(min(costs))], tried=tuple(text.rates.values))


def forget_rates(text: LargeText, model: str) -> None:
    """Remove the runs of the rates, unless another process uses them. Later processes find the rate in the records."""
    if text.rates is not None:
        text.runs.remove_if_unused(_place(text, model))


def _choices(text: LargeText, model: str) -> list[Chosen]:
    """Return the model with each of its learning rates."""
    chosen = text.chosen(model)
    if text.rates is None:
        return [chosen]
    return [with_rate(chosen, rate) for rate in text.rates.values]


def _recorded(text: LargeText, model: str, choices: Sequence[Chosen]) -> RatedModel | None:
    for one in choices:
        if result := text.find(model, one, seed=None):
            text.tell(model, f"{_described(one)}, as in its records; no others are tried")
            return RatedModel(one, tried=result.rates_tried)
    return None


def _try(text: LargeText, model: str, chosen: Chosen, seconds: float) -> float:
    """Return the cost of the best validation of a training in this time; infinity if it diverges."""
    text.tell(model, f"trying {_described(chosen)} for {seconds:g} s")
    short = chosen.changed(Budget(seconds).settings).seeded(_SEED)
    run = _place(text, model) / digest_of(to_table(short))
    try:
        return _best_cost(text.runs.train(short, run, text.collector.watch))
    except DivergedError:
        return math.inf


def _place(text: LargeText, model: str) -> Path:
    """Return the folder of the runs that try rates for a model."""
    return text.runs.place(text.corpus.name, model, text.budget.key, "rates")


def _described(chosen: Chosen) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {chosen.settings[key]:g}" for key in RATES)


def _best_cost(run: Run) -> float:
    """Return the best validation by the score of the training, as a number that is better if it is lower."""
    score = run.config["training"]["score"]
    return min(cost(record, score) for record in run.metrics() if record["kind"] == "validation")
