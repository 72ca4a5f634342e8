"""Trials of a study: their states, hyper-parameters and scores, and their order by any score."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from zloss_lab.checksums import CHECKSUM, content_checksum
from zloss_lab.evaluation import Evaluation, finite, is_made_large, named_scores
from zloss_lab.tuning.space import Space

# Attributes of a trial in its storage, beside its checksum.
CURVE, ENDING, WHY = "curve", "ending", "why"

TrialStatus = Literal["running", "complete", "pruned", "diverged", "failed", "interrupted"]
# Scores of a validation by name, and its epoch. An infinite score, or one that is not a number, is None.
ValidationScores = Mapping[str, float | None]

_STATES: dict[TrialState, TrialStatus] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "interrupted",
}


@dataclass(frozen=True)
class Trial:
    """One choice of hyper-parameters, and its results."""

    number: int
    state: TrialStatus
    settings: dict[str, Any]  # by dotted keys
    curve: list[ValidationScores]  # of all validations, in order
    why: str  # the reason of a trial that diverged, failed or was interrupted
    seconds: float | None  # None while it runs

    @classmethod
    def of(cls, frozen: FrozenTrial, space: Space, score: str) -> "Trial":
        """Return the trial that Optuna's storage has. `ValueError` for one that is not what was stored at its end.

        Args:
            frozen: the trial.
            space: the space of the study.
            score: the score of the study, whose values Optuna has as well.
        """
        attributes = frozen.user_attrs
        trial = cls(
            number=frozen.number,
            state=attributes.get(ENDING, _STATES[frozen.state]),
            settings=space.settings(frozen.params),
            curve=attributes.get(CURVE, []),
            why=attributes.get(WHY, ""),
            seconds=None if frozen.duration is None else frozen.duration.total_seconds(),
        )
        if frozen.state in (TrialState.COMPLETE, TrialState.PRUNED):
            _check(trial, frozen, space, score)
        return trial

    def checksum(self) -> str:
        """Return the checksum of the choice and of the results."""
        return content_checksum((self.number, self.state, self.settings, self.curve, self.why))

    def best(self, score: str) -> ValidationScores | None:
        """Return the best validation by a score, or None where no validation has this score."""
        return best_validation(self.curve, score)

    def value(self, score: str) -> float | None:
        """Return the best value of a score, or None where no validation has it."""
        best = self.best(score)
        return None if best is None else best[score]

    @property
    def is_judged(self) -> bool:
        """True if the scores of the trial can be compared with others: it is complete, or was pruned."""
        return self.state in ("complete", "pruned")


def reported(scores: ValidationScores, score: str) -> float:
    """Return the value of a validation for Optuna, which has NaN for a missing score."""
    value = scores.get(score)
    return math.nan if value is None else value


def _check(trial: Trial, frozen: FrozenTrial, space: Space, score: str) -> None:
    """Refuse a trial that has ended and whose parts are not what was stored: the search would go by wrong numbers."""
    if frozen.user_attrs.get(CHECKSUM) != trial.checksum():
        raise ValueError(f"trial {trial.number} differs from its checksum")
    curve = [reported(scores, score) for scores in trial.curve]
    stored = [value for _, value in sorted(frozen.intermediate_values.items())]
    # The value of a pruned trial is its last one, which is compared above.
    is_other = frozen.state == TrialState.COMPLETE and frozen.value != trial.value(score)
    known = {key: space.distributions[key] for key in frozen.params}
    if str(stored) != str(curve) or is_other or frozen.distributions != known:
        raise ValueError(f"trial {trial.number} has values that differ from its curve")


def cost(scores: ValidationScores, score: str) -> float:
    """Return a score as a cost: smaller is better. The cost of a missing score is infinite."""
    value = scores.get(score)
    if value is None:
        return math.inf
    return -value if is_made_large(score) else value


def best_validation(curve: Iterable[ValidationScores], score: str) -> ValidationScores | None:
    """Return the validation with the best score, or None where no validation has it.

    >>> best_validation([{"epoch": 1, "mrr": 0.2}, {"epoch": 2, "mrr": 0.3}], "mrr")
    {'epoch': 2, 'mrr': 0.3}
    """
    having = [scores for scores in curve if scores.get(score) is not None]
    return min(having, key=lambda scores: cost(scores, score), default=None)


def ranked(trials: Iterable[Trial], score: str) -> list[Trial]:
    """Return the trials that have this score and are judged, the best first."""
    judged = [trial for trial in trials if trial.is_judged and trial.best(score) is not None]
    return sorted(judged, key=lambda trial: cost(trial.best(score) or {}, score))


def scores_of(epoch: float, evaluation: Evaluation) -> ValidationScores:
    """Return the scores of an evaluation that a study keeps."""
    return {"epoch": epoch} | finite(named_scores(evaluation))


def score_names(trials: Sequence[Trial]) -> list[str]:
    """Return the names of the scores that the validations of these trials have."""
    return list(
        dict.fromkeys(
            name for trial in trials for scores in trial.curve for name in scores if name != "epoch"
        )
    )
