"""The facts about a run in its files: settings, scores, times, starts, and whether its training has ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zloss_lab.checkpoints import StateFile
from zloss_lab.configuration import dotted
from zloss_lab.evaluation import is_made_large
from zloss_lab.inspection.plotting import run_names
from zloss_lab.run_starts import RunStart, starts_of
from zloss_lab.runs import Run
from zloss_lab.training import Experiment, resumed

Record = dict[str, Any]  # a line of metrics


@dataclass(frozen=True)
class RunFacts:
    """The facts about a run."""

    run: Run
    name: str  # to show
    experiment: Experiment
    settings: dict[str, Any]  # by dotted key
    metrics: list[Record]
    state: StateFile | None  # of the last checkpoint
    starts: list[RunStart]

    @classmethod
    def of(cls, run: Run, name: str) -> "RunFacts":
        """Read the files of a run. `ValueError` says what is damaged."""
        state = run.state() if run.steps() else None
        settings = dict(dotted(run.config))
        starts = starts_of(run.folder)
        return cls(run, name, resumed(run.folder), settings, run.metrics(), state, starts)

    @property
    def validations(self) -> list[Record]:
        """The lines of metrics that have scores."""
        return [record for record in self.metrics if record["kind"] == "validation"]

    @property
    def step(self) -> int:
        """The number of steps so far. Ctrl-C saves a checkpoint after the last line of the metrics."""
        logged = int(self.metrics[-1]["step"]) if self.metrics else 0
        return max(logged, 0 if self.state is None else self.state.step)

    @property
    def epoch(self) -> float | None:
        """The number of epochs so far, as far as the metrics tell."""
        last = next((record for record in reversed(self.metrics) if record["step"]), None)
        return None if last is None else self.step * last["epoch"] / last["step"]

    @property
    def seconds(self) -> float | None:
        """The time of all training steps so far."""
        times = [record["seconds"] for record in self.metrics if record.get("seconds") is not None]
        return max([*times, *([] if self.state is None else [self.state.seconds])], default=None)

    @property
    def best(self) -> Record | None:
        """The validation that decided on the best checkpoint."""
        step = None if self.state is None else self.state.schedule.best_step
        return next((record for record in self.validations if record["step"] == step), None)

    def best_within(self, seconds: float, score: str) -> Record | None:
        """Return the validation with the best score up to a time of training. All validations have their times."""
        judged = [
            record
            for record in self.validations
            if record.get(score) is not None and record["seconds"] <= seconds
        ]
        choose = max if is_made_large(score) else min
        return choose(judged, key=lambda record: float(record[score])) if judged else None

    @property
    def open_end(self) -> str | None:
        """The part of the training that is missing, or None if it has ended as its config says."""
        training, state, resume = (
            self.experiment.training,
            self.state,
            "go on with zloss train --resume",
        )
        if state is None:
            return f"no checkpoint yet; {resume}"
        is_over = (
            (training.steps is not None and self.step >= training.steps)
            # Whole epochs are whole numbers of steps, so that only rounding errors are left.
            or (training.epochs is not None and (self.epoch or 0) >= training.epochs - 1e-9)
            or (training.seconds is not None and state.seconds >= training.seconds)
            or state.schedule.lowered >= training.stop_after
        )
        return None if is_over else f"not ended at step {self.step:,}; {resume}"


def readable_facts(runs: Sequence[Run]) -> tuple[list[RunFacts], list[str]]:
    """Return the facts about the runs that can be read, and a message for every other one."""
    names, facts, faults = run_names(runs), [], []
    for run in runs:
        try:
            facts.append(RunFacts.of(run, names[run.folder]))
        except ValueError as error:
            faults.append(str(error))
    return facts, faults


def differing_settings(runs: Sequence[RunFacts]) -> list[str]:
    """Return the keys whose values differ between runs, in the order of the first run."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    return [key for key in keys if len({repr(run.settings.get(key)) for run in runs}) > 1]
