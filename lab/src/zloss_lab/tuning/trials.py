"""What is known of the trials of a study, and which of them was the best by any score."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from zloss_lab.evaluation import Evaluation, finite, is_made_large
from zloss_lab.tuning.space import Space

# Attributes of a trial in its storage.
CURVE, ENDING, WHY = "curve", "ending", "why"

TrialStatus = Literal["running", "complete", "pruned", "diverged", "failed", "interrupted"]
ValidationScores = Mapping[
    str, float | None
]  # by name, with the epoch; None for what is no finite number

_STATES: dict[TrialState, TrialStatus] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "interrupted",
}


@dataclass(frozen=True)
class Trial:
    """One choice of hyper-parameters, and what came of it."""

    number: int
    state: TrialStatus
    settings: dict[str, Any]  # by dotted keys
    curve: list[ValidationScores]  # of all validations, in order
    why: str  # it broke off, where it did
    seconds: float | None  # once it has ended

    @classmethod
    def of(cls, frozen: FrozenTrial, space: Space) -> "Trial":
        """From what the storage has of it."""
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
        """Its best validation by a score, or None where it has none."""
        return best_validation(self.curve, score)

    def value(self, score: str) -> float | None:
        """The best score that it reached."""
        best = self.best(score)
        return None if best is None else best[score]

    @property
    def is_judged(self) -> bool:
        """Whether it has the scores that its hyper-parameters deserve, as far as anybody wanted to know."""
        return self.state in ("complete", "pruned")


def cost(scores: ValidationScores, score: str) -> float:
    """A score as something to be made small; infinite where it is no finite number."""
    value = scores.get(score)
    if value is None:
        return math.inf
    return -value if is_made_large(score) else value


def best_validation(curve: Iterable[ValidationScores], score: str) -> ValidationScores | None:
    """The one with the best score, or None where no validation has it.

    >>> best_validation([{"epoch": 1, "mrr": 0.2}, {"epoch": 2, "mrr": 0.3}], "mrr")
    {'epoch': 2, 'mrr': 0.3}
    """
    having = [scores for scores in curve if scores.get(score) is not None]
    return min(having, key=lambda scores: cost(scores, score), default=None)


def ranked(trials: Iterable[Trial], score: str) -> list[Trial]:
    """Those that were judged by this score, the best first."""
    judged = [trial for trial in trials if trial.is_judged and trial.best(score) is not None]
    return sorted(judged, key=lambda trial: cost(trial.best(score) or {}, score))


def scores_of(epoch: float, evaluation: Evaluation) -> ValidationScores:
    """What is kept of a validation."""
    record = evaluation.to_record()
    kept = {
        name: value
        for name, value in record.items()
        if not name.endswith("_half_width") and name not in ("examples", "population")
    }
    return {"epoch": epoch} | finite(kept)


def score_names(trials: Sequence[Trial]) -> list[str]:
    """The scores that the validations of these trials have."""
    return list(
        dict.fromkeys(
            name for trial in trials for scores in trial.curve for name in scores if name != "epoch"
        )
    )
