"""The results of trials that are trained side by side: their validations, and whether they ended early."""

from dataclasses import dataclass, field, replace

from zloss_lab.evaluation import Evaluation
from zloss_lab.training import Experiment


@dataclass(frozen=True)
class Validation:
    """The scores of a trial after a number of steps."""

    step: int
    epoch: float
    evaluation: Evaluation


@dataclass
class TrialOutcome:
    """The results of a trial so far."""

    experiment: Experiment
    validations: list[Validation] = field(default_factory=list)
    diverged: bool = False  # its loss, its weights or its scores of targets were no longer finite
    pruned: bool = False  # the judge ended it

    @property
    def has_ended(self) -> bool:
        """True if the trial ended before its last step."""
        return self.diverged or self.pruned

    @property
    def best(self) -> Validation | None:
        """The best validation by `training.score`, or None if the trial diverged before its first validation."""
        return self.best_by(self.experiment.training.score)

    def best_by(self, score: str) -> Validation | None:
        """Return the best validation by any score; of equal ones, the first."""
        cost = replace(self.experiment.training, score=score).cost
        return min(
            self.validations, key=lambda validation: cost(validation.evaluation), default=None
        )
