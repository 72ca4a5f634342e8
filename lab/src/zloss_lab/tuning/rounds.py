"""A round of a study: trials that are trained at the same time, from their experiments to their ends."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from zloss_lab.checksums import CHECKSUM
from zloss_lab.evaluation import Evaluation
from zloss_lab.training import Experiment
from zloss_lab.tuning.evaluators import Ending
from zloss_lab.tuning.plan import StudyPlan
from zloss_lab.tuning.pruning import behind
from zloss_lab.tuning.trials import (
    CURVE,
    ENDING,
    WHY,
    Trial,
    TrialStatus,
    ValidationScores,
    best_validation,
    cost,
    reported,
    scores_of,
)
from zloss_lab.tuning.workers import GIVEN_UP, WORKER, own_name

# Called with trials that have been validated, or have ended.
StudyWatcher = Callable[[Sequence[Trial]], None]


class Round:
    """Trials that are trained at the same time, and what the storage of the study has to know of them."""

    def __init__(self, study: optuna.Study, plan: StudyPlan, watch: StudyWatcher) -> None:
        self._study, self._plan, self._watch = study, plan, watch
        self._trials: dict[int, optuna.Trial] = {}
        self._curves: dict[int, list[ValidationScores]] = {}
        self._given_up: set[int] = set()  # by another worker, which took this one for dead

    def begin(self, trials: Iterator[optuna.Trial]) -> dict[int, Experiment]:
        """Claim new trials for this worker, and return their experiments."""
        for trial in trials:
            self._trials[trial.number], self._curves[trial.number] = trial, []
            trial.set_user_attr(WORKER, own_name())
        return {
            number: self._plan.trial(self._plan.searched.settings(trial.params))
            for number, trial in self._trials.items()
        }

    def judge(self, epoch: float, validations: Mapping[int, Evaluation]) -> set[int]:
        """Store new validations, and return the trials to stop."""
        for number, evaluation in validations.items():
            self._note(number, scores_of(epoch, evaluation))
        going = [number for number in validations if number not in self._given_up]
        self._watch([self._view(number, "running") for number in going])
        return self._given_up.intersection(validations) | self._to_stop(going)

    def _to_stop(self, going: Sequence[int]) -> set[int]:
        """Return the trials to stop among those that have just been validated."""
        if self._plan.first is not None:
            return set(going)
        if not self._plan.prunes:
            return set()
        costs = self._costs()
        # Another worker may have given up a trial just now: then it has no costs.
        return behind([number for number in going if number in costs], costs)

    def _costs(self) -> dict[int, list[float]]:
        """Return the costs of all trials at their validations, of all workers. Interrupted trials are left out."""
        begun = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)
        return {
            frozen.number: [
                self._cost(value) for _, value in sorted(frozen.intermediate_values.items())
            ]
            for frozen in self._study.get_trials(deepcopy=False, states=begun)
        }

    def _cost(self, reported: float) -> float:
        score = self._plan.score
        return cost({score: None if math.isnan(reported) else reported}, score)

    def _note(self, number: int, scores: ValidationScores) -> None:
        curve = self._curves[number]
        curve.append(scores)
        try:
            self._trials[number].report(reported(scores, self._plan.score), step=len(curve))
        except UpdateFinishedTrialError:
            self._given_up.add(number)

    def end(self, endings: Mapping[int, Ending]) -> None:
        """Store how the trials ended."""
        self._watch([self._end(number, ending) for number, ending in endings.items()])

    def _end(self, number: int, ending: Ending) -> Trial:
        try:
            return self._stored_end(number, ending)
        except UpdateFinishedTrialError:
            # The storage counts the trial as interrupted, and another trial makes up for it.
            return self._view(number, "interrupted", GIVEN_UP)

    def _stored_end(self, number: int, ending: Ending) -> Trial:
        """Store the end of a trial.

        A trial that diverged or failed is "pruned" for Optuna, which then avoids similar hyper-parameters. Trials that
        are "failed" for Optuna have no influence on its search.
        """
        trial, curve = self._trials[number], self._curves[number]
        best = best_validation(curve, self._plan.score)
        trial.set_user_attr(CURVE, curve)
        if best is None and ending.state in ("ended", "stopped"):
            ending = Ending("failed", f"no validation had a finite {self._plan.score}")
        state = _state(ending, self._plan)
        if state in ("diverged", "failed"):
            trial.set_user_attr(ENDING, state)
            trial.set_user_attr(WHY, ending.why)
        trial.set_user_attr(CHECKSUM, self._view(number, state, ending.why).checksum())
        if best is not None and state == "complete":
            stored = self._study.tell(trial, best[self._plan.score], skip_if_finished=True)
        else:
            stored = self._study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        if stored.state == TrialState.FAIL:  # another worker has written that
            raise UpdateFinishedTrialError
        return self._view(number, state, ending.why)

    def interrupt(self) -> None:
        """Mark all trials that have not ended as interrupted."""
        for trial in self._trials.values():
            self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def _view(self, number: int, state: TrialStatus, why: str = "") -> Trial:
        settings = self._plan.searched.settings(self._trials[number].params)
        return Trial(number, state, settings, self._curves[number], why, seconds=None)


def begun_trials(study: optuna.Study, plan: StudyPlan) -> list[Trial]:
    """Return all trials of a study that any worker has begun."""
    begun = [state for state in TrialState if state != TrialState.WAITING]
    return [
        Trial.of(frozen, plan.searched, plan.score)
        for frozen in study.get_trials(deepcopy=False, states=begun)
    ]


def _state(ending: Ending, plan: StudyPlan) -> TrialStatus:
    if ending.state in ("diverged", "failed"):
        return ending.state
    # If trials are judged by their first steps, each of them is complete when it is stopped.
    return "pruned" if ending.state == "stopped" and plan.first is None else "complete"
