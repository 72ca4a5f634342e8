"""Table 2 with several trainings at a time, for a GPU that one network does not fill.

What is missing is found here, and each training is a job for a process of its own. So is the choice of a learning rate
for a model that has several to try. These come first: all seeds of a model have the same rate.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rich.console import Console

from reproduction.experiments.display import TrainingBars
from reproduction.experiments.large_texts import LargeText, Rated
from reproduction.experiments.processes import Done, Failed, Job, Outcome, Tell, run_at_once
from reproduction.report.records import CONSTANT
from zloss_lab.durable import tidied
from zloss_lab.training import Watcher

Run = Callable[[Sequence[Job]], Mapping[str, Outcome]]


def collect_at_once(
    text: LargeText, models: Sequence[str], most: int, console: Console
) -> list[str]:
    """The same as `text.collect(models)`, with so many trainings at a time."""
    text.check(models)
    with tidied(text.runs):
        if CONSTANT in models:
            text.collect_constant()
        with TrainingBars(console, text.collector.tell) as bars:
            run = partial(run_at_once, most=most, bars=bars)
            rated, faults = _rated(text, [model for model in models if model != CONSTANT], run)
            return faults + _train(text, rated, run)


def _rated(text: LargeText, models: Sequence[str], run: Run) -> tuple[dict[str, Rated], list[str]]:
    """Models with their learning rates, and why others have none."""
    known = {model: text.known_rate(model) for model in models}
    jobs = {
        model: Job(
            f"{model}, learning rates", partial(_try_rates_elsewhere, text.heard_by(), model)
        )
        for model, rated in known.items()
        if rated is None
    }
    outcomes = run(list(jobs.values()))
    for model, job in jobs.items():
        outcome = outcomes[job.name]
        known[model] = outcome.result if isinstance(outcome, Done) else None
    return {model: rated for model, rated in known.items() if rated is not None}, _faults(
        text, outcomes
    )


def _train(text: LargeText, models: Mapping[str, Rated], run: Run) -> list[str]:
    """Train the seeds that are missing; returns what could not be trained."""
    jobs = {
        model: [
            Job(
                f"{model}, seed {seed}",
                partial(_train_elsewhere, text.heard_by(), model, rated, seed),
            )
            for seed in text.missing(model, rated)
        ]
        for model, rated in models.items()
    }
    outcomes = run([job for of_model in jobs.values() for job in of_model])
    for model, of_model in jobs.items():
        if all(isinstance(outcomes[job.name], Done) for job in of_model):
            text.forget_rates(model)
    return _faults(text, outcomes)


def _faults(text: LargeText, outcomes: Mapping[str, Outcome]) -> list[str]:
    return [
        text.fault(name, outcome.why)
        for name, outcome in outcomes.items()
        if isinstance(outcome, Failed)
    ]


# ---- in another process ----------------------------------------------------------------------------------------------


def _try_rates_elsewhere(text: LargeText, model: str, watch: Watcher, tell: Tell) -> Rated:
    return text.heard_by(watch, tell).try_rates(model)


def _train_elsewhere(
    text: LargeText, model: str, rated: Rated, seed: int, watch: Watcher, tell: Tell
) -> None:
    text.heard_by(watch, tell).train(model, rated, seed)
