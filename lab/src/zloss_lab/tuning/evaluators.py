"""How trials are trained and judged: one after the other, by `fit`, or side by side in one process.

An evaluator takes experiments and a judge. Whenever one or more of them have been validated, the judge is told and
answers which of them to stop. What comes back is how each ended; the scores are known by then.
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
from zloss_lab.sidebyside.trial_settings import FREE, check_trials
from zloss_lab.training import DivergedError, Experiment, TrainingProgress, fit

PASSING = "running-"  # and the number of a trial: its run, where runs are not kept
_LOSS_OPTIONS = {f"network.head.{option}" for loss in LOSSES.values() for option in loss.options}

# Epochs done, and the validations of those experiments that have one now -> which of them to stop.
Judge = Callable[[float, Mapping[int, Evaluation]], Collection[int]]


@dataclass(frozen=True)
class Ending:
    """How a training ended: as planned, as the judge said, or because it could not go on."""

    state: Literal["ended", "stopped", "diverged", "failed"]
    why: str = ""


class Evaluator(Protocol):
    """A way to train some experiments, each of which goes by the number of its trial."""

    def check(self, experiment: Experiment) -> None:
        """Refuse what cannot be trained in this way."""

    def is_shared(self, key: str) -> bool:
        """Whether experiments that are trained together must have the same value of this key."""

    def evaluate(self, experiments: Mapping[int, Experiment], judge: Judge) -> dict[int, Ending]:
        """Train them all."""


class _Stopped(Exception):
    """The judge has seen enough."""


class OneByOne:
    """Trainings by `fit`, with any head. Their runs are in the folder of the study, to be kept or while they last."""

    def __init__(self, folder: Path, *, keeps_runs: bool = False) -> None:
        self.folder, self.keeps_runs = folder, keeps_runs

    def check(self, experiment: Experiment) -> None:
        """Anything can be."""

    def is_shared(self, key: str) -> bool:
        """Nothing is."""
        return False

    def evaluate(self, experiments: Mapping[int, Experiment], judge: Judge) -> dict[int, Ending]:
        """Train one after the other."""
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
                with _passing(self.folder / f"{PASSING}{number:05d}") as folder:
                    fit(_without_checkpoints(experiment), folder, watch=watch)
        except _Stopped:
            return Ending("stopped")
        except DivergedError as error:
            return Ending("diverged", error.reason)  # a trial is not gone on with
        except torch.OutOfMemoryError as error:
            return Ending("failed", str(error).partition("\n")[0])
        return Ending("ended")


@contextmanager
def _passing(folder: Path) -> Iterator[Path]:
    """A folder that goes with the end of the block. That of a process that was killed is for the next worker."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _without_checkpoints(experiment: Experiment) -> Experiment:
    """All but the best one: nobody will go on with this run."""
    training = dataclasses.replace(experiment.training, checkpoint_every=2**62)
    return dataclasses.replace(experiment, training=training)


class Together:
    """Trainings side by side in one process, which a GPU takes for little more than one of them."""

    def check(self, experiment: Experiment) -> None:
        """Only what `zloss_lab.sidebyside` can train."""
        check_trials([experiment])

    def is_shared(self, key: str) -> bool:
        """All but numbers that can be kept per network."""
        return key not in FREE | _LOSS_OPTIONS

    def evaluate(self, experiments: Mapping[int, Experiment], judge: Judge) -> dict[int, Ending]:
        """Train all of them together."""
        try:
            stack = SideBySide(list(experiments.values()))
            messenger = _Messenger(dict(zip(experiments, stack.outcomes, strict=True)), judge)
            stack.train(lambda _epoch, _validations: messenger.tell())
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"{len(experiments)} networks at once are too many for the device, use fewer"
            ) from error
        messenger.tell()  # of the last validation, when nothing is left to stop
        return {number: _ending(outcome) for number, outcome in messenger.outcomes.items()}


class _Messenger:
    """Between a stack, which counts its trials from 0, and a judge, who knows them by other numbers."""

    def __init__(self, outcomes: Mapping[int, TrialOutcome], judge: Judge) -> None:
        self.outcomes, self._judge = outcomes, judge
        self._told = dict.fromkeys(outcomes, 0)  # validations so far

    def tell(self) -> list[int]:
        """Bring what is new to the judge; returns the places in the stack of those to stop."""
        new = {
            number: outcome.validations[-1]
            for number, outcome in self.outcomes.items()
            if len(outcome.validations) > self._told[number]
        }
        if not new:
            return []
        self._told |= {number: len(self.outcomes[number].validations) for number in new}
        epoch = next(iter(new.values())).epoch  # of all: they are validated together
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
