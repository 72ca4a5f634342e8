"""Table 2 with several trainings at a time, for a GPU that one network does not fill.

The missing records are found here, and each training is a job for a process of its own. The choice of a learning rate
is a job too, for each model that has several rates to try. These jobs come first, because all seeds of a model have the
same rate.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.console import Console

from reproduction.large_text_models import CONSTANT
from reproduction.running.large_texts.jobs import Done, Failed, Job, JobOutcome, run_at_once
from reproduction.running.large_texts.learning_rates import (
    RatedModel,
    forget_rates,
    known_rate,
    try_rates,
)
from reproduction.running.large_texts.text import LargeText
from reproduction.running.large_texts.training_bars import TrainingBars
from reproduction.running.large_texts.trainings import collect_constant, missing_seeds, train_seed
from reproduction.running.messages import Tell
from zloss_lab.durable import tidied
from zloss_lab.training import TrainingWatcher

JobRunner = Callable[[Sequence[Job]], Mapping[str, JobOutcome]]


def collect_at_once(
    text: LargeText, models: Sequence[str], most: int, console: Console
) -> list[str]:
    """Make the same records as `collect_one_by_one`, with at most this number of trainings at a time."""
    text.check(models)
    with tidied(text.runs.folder):
        if CONSTANT in models:
            collect_constant(text)
        with TrainingBars(console, text.collector.tell) as bars:
            run = partial(run_at_once, most=most, bars=bars)
            networks = [model for model in models if model != CONSTANT]
            rated, faults = _with_rates(text, networks, run)
            return faults + _train(text, rated, run)


def _with_rates(
    text: LargeText, models: Sequence[str], run: JobRunner
) -> tuple[dict[str, RatedModel], list[str]]:
    """Return the models that have a learning rate, and messages about the others."""
    known = {model: known_rate(text, model) for model in models}
    quiet = text.with_listeners()
    jobs = {
        model: Job(f"{model}, learning rates", partial(_try_rates_elsewhere, quiet, model))
        for model, rated in known.items()
        if rated is None
    }
    outcomes = run(list(jobs.values()))
    for model, job in jobs.items():
        outcome = outcomes[job.name]
        known[model] = outcome.result if isinstance(outcome, Done) else None
    rated_models = {model: rated for model, rated in known.items() if rated is not None}
    return rated_models, _faults(text, outcomes)


def _train(text: LargeText, models: Mapping[str, RatedModel], run: JobRunner) -> list[str]:
    """Train the missing seeds; return messages about trainings that failed."""
    quiet = text.with_listeners()
    jobs = {
        model: [
            Job(f"{model}, seed {seed}", partial(_train_elsewhere, quiet, model, rated, seed))
            for seed in missing_seeds(text, model, rated)
        ]
        for model, rated in models.items()
    }
    outcomes = run([job for of_model in jobs.values() for job in of_model])
    for model, of_model in jobs.items():
        if all(isinstance(outcomes[job.name], Done) for job in of_model):
            forget_rates(text, model)
    return _faults(text, outcomes)


def _faults(text: LargeText, outcomes: Mapping[str, JobOutcome]) -> list[str]:
    return [
        text.fault(name, outcome.why)
        for name, outcome in outcomes.items()
        if isinstance(outcome, Failed)
    ]


# ---- in another process ----------------------------------------------------------------------------------------------


def _try_rates_elsewhere(
    text: LargeText, model: str, watch: TrainingWatcher, tell: Tell
) -> RatedModel:
    return try_rates(text.with_listeners(watch, tell), model)


def _train_elsewhere(
    text: LargeText, model: str, rated: RatedModel, seed: int, watch: TrainingWatcher, tell: Tell
) -> None:
    train_seed(text.with_listeners(watch, tell), model, rated, seed)
