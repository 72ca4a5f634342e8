"""Trials of a study: their states, hyper-parameters and scores, and their order by any score."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from zloss_lab.evaluation import Evaluation, finite, is_made_large, named_scores
from zloss_lab.tuning.space import Space

# Attributes of a trial in its storage.
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
    def of(cls, frozen: FrozenTrial, space: Space) -> "Trial":
        """Return the trial that Optuna's storage has."""
        attributes = frozen.user_attrs
        return cls(
            number=frozen.number,
            state=attributes.get(ENDING, _STATES[frozen.state]),
            settings=space.settings(frozen.params),
            curve=attributes.get(CURVE, []),
            why=attributes.get(WHY, ""),
            seconds=None if frozen.duration is None else frozen.duration.total_seconds(),
        )

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
