"""Evaluators: ways to train the trials of a study, one after the other or side by side in one process.

An evaluator takes experiments and a judge. After every validation it calls the judge with the new scores, and the judge
returns the trials to stop. At last the evaluator returns how each trial ended; the judge has all scores by then.
"""

import dataclasses
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from zloss.heads.config import LOSSES
from zloss_lab.evaluation import Evaluation
from zloss_lab.runs import RunError
from zloss_lab.sidebyside import SideBySide, TrialOutcome
from zloss_lab.sidebyside.trial_settings import FREE_KEYS, check_trials
from zloss_lab.training import DivergedError, Experiment, TrainingProgress, fit

# Begins the name of the folder of a run that is deleted when its trial ends.
RUNNING_PREFIX = "running-"
_LOSS_OPTIONS = {f"network.head.{option}" for loss in LOSSES.values() for option in loss.options}

# Called with the epochs done and the new validations by trial; returns the trials to stop.
Judge = Callable[[float, Mapping[int, Evaluation]], Collection[int]]


@dataclass(frozen=True)
class Ending:
    """The end of a training: it reached its last step, the judge stopped it, or it could not go on."""

    state: Literal["ended", "stopped", "diverged", "failed"]
    why: str = ""


class Evaluator(Protocol):
    """A way to train experiments; each has the number of its trial."""

    def check(self, experiment: Experiment) -> None:
        """Raise `ValueError` for an experiment that cannot be trained in this way."""

    def is_shared(self, key: str) -> bool:
        """Return whether experiments that are trained together must have the same value of this key."""

    def evaluate(self, experiments: Mapping[int, Experiment], judge: Judge) -> dict[int, Ending]:
        """Train all experiments, and return how each ended."""


class _Stopped(Exception):
    """Raised inside a training that the judge stops."""


class OneByOne:
    """Trainings by `fit`, one after the other, with any head.

    Args:
        folder: of the study; the runs lie in it.
        keeps_runs: whether runs stay there. By default each is deleted when its training ends.
    """

    def __init__(self, folder: Path, *, keeps_runs: bool = False) -> None:
        self.folder, self.keeps_runs = folder, keeps_runs

    def check(self, experiment: Experiment) -> None:
        """Accept every experiment."""

    def is_shared(self, key: str) -> bool:
        """Return False: these trainings have nothing to do with each other."""
        return False

    def evaluate(self, experiments: Mapping[int, Experiment], judge: Judge) -> dict[int, Ending]:
        """Train all experiments, one after the other."""
        return {
            number: self._train(number, experiment, judge)
            for number, experiment in experiments.items()
        }

    def _train(self, number: int, experiment: Experiment, judge: Judge) -> Ending:
        def watch(progress: TrainingProgress) -> None:
            if progress.validation is None:
                return
            to_stop = judge(progress.epoch, {number: progress.validation})
            if to_stop and progress.step < progress.steps:
                raise _Stopped

        try:
            if self.keeps_runs:
                fit(experiment, self.folder / "runs" / f"{number:05d}", watch=watch)
            else:
                with _temporary(self.folder / f"{RUNNING_PREFIX}{number:05d}") as folder:
                    fit(_without_checkpoints(experiment), folder, watch=watch)
        except _Stopped:
            return Ending("stopped")
        except DivergedError as error:
            return Ending("diverged", error.reason)  # the hint about a checkpoint is left out
        except torch.OutOfMemoryError as error:
            return Ending("failed", str(error).partition("\n")[0])
        return Ending("ended")


@contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Delete the folder at the end of the block. If the process is killed, the next worker deletes it."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _without_checkpoints(experiment: Experiment) -> Experiment:
    """Return the experiment without checkpoints at intervals: this run will never be resumed."""
    training = dataclasses.replace(experiment.training, checkpoint_every=2**62)
    return dataclasses.replace(experiment, training=training)


class Together:
    """Trainings side by side in one process. On a GPU all of them take little longer than one."""

    def check(self, experiment: Experiment) -> None:
        """Raise `ValueError` for an experiment that `zloss_lab.sidebyside` cannot train."""
        check_trials([experiment])

    def is_shared(self, key: str) -> bool:
        """Return whether the key is anything but a number that each network may have of its own."""
        return key not in FREE_KEYS | _LOSS_OPTIONS

    def evaluate(self, experiments: Mapping[int, Experiment], judge: Judge) -> dict[int, Ending]:
        """Train all experiments together."""
        try:
            stack = SideBySide(list(experiments.values()))
            news = _StackNews(dict(zip(experiments, stack.outcomes, strict=True)), judge)
            stack.train(lambda _epoch, _validations: news.pass_on())
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"{len(experiments)} networks at once are too many for the device, use fewer"
            ) from error
        news.pass_on()  # after the last validation a stack does not ask which trials to stop
        return {number: _ending(outcome) for number, outcome in news.outcomes.items()}


class _StackNews:
    """New validations of a stack, on their way to the judge.

    A stack counts its trials from 0. The judge knows them by their numbers in the study.
    """

    def __init__(self, outcomes: Mapping[int, TrialOutcome], judge: Judge) -> None:
        self.outcomes, self._judge = outcomes, judge
        self._passed_on = dict.fromkeys(outcomes, 0)  # validations of each trial

    def pass_on(self) -> list[int]:
        """Give new validations to the judge, and return the places in the stack of the trials to stop."""
        new = {
            number: outcome.validations[-1]
            for number, outcome in self.outcomes.items()
            if len(outcome.validations) > self._passed_on[number]
        }
        if not new:
            return []
        self._passed_on |= {number: len(self.outcomes[number].validations) for number in new}
        epoch = next(iter(new.values())).epoch  # the same for all: they are validated together
        to_stop = self._judge(
            epoch, {number: validation.evaluation for number, validation in new.items()}
        )
        return [place for place, number in enumerate(self.outcomes) if number in to_stop]


def _ending(outcome: TrialOutcome) -> Ending:
    if outcome.diverged:
        return Ending(
            "diverged", "the loss, a weight or the score of a word is no longer a finite number"
        )
    return Ending("stopped" if outcome.pruned else "ended")
