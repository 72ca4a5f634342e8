"""When learning rates fall, and when training ends.

By the schedule "plateau" the learning rates fall when the validation score stops improving, and training stops when
that no longer helps. By "linear" they fall to zero over the whole run, whatever the scores are.
"""

from dataclasses import dataclass

from zloss_lab.training.experiment import TrainingConfig

# Of the linear schedule. A learning rate is part of a captured CUDA graph, and each change captures anew.
STAGES = 20


@dataclass
class Schedule:
    """What the learning rates and the end of training depend on."""

    factor: float = 1.0  # of the learning rates
    best: float | None = None
    best_step: int | None = None
    waiting: int = 0  # validations since the best
    lowered: int = 0  # times since the best

    def update(self, score: float, step: int, config: TrainingConfig) -> bool:
        """Take note of a validation score, lower being better; returns whether it is the best so far."""
        if self.best is None or score < self.best:
            self.best, self.best_step, self.waiting, self.lowered = score, step, 0, 0
            return True
        self.waiting += 1
        if config.schedule == "plateau" and self.waiting > config.patience:
            self.factor *= config.lr_factor
            self.waiting, self.lowered = 0, self.lowered + 1
        return False


def linear_factor(done: float, total: float) -> float:
    """Of the learning rates, after so many of all steps or seconds: from 1 towards 0 in equal stages.

    >>> [linear_factor(step, 100) for step in (0, 4, 5, 50, 99)]
    [1.0, 1.0, 0.95, 0.5, 0.05]
    """
    return max(1, STAGES - STAGES * done // total) / STAGES
