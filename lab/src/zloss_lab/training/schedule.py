"""Schedules for the learning rates and for the end of training.

With the schedule "plateau" the learning rates fall when the validation score stops improving, and training ends when
lower rates no longer help. With "linear" they fall to zero over the whole run and do not depend on the scores.
"""

import math
import sys

from zloss_lab.checkpoints import ScheduleState
from zloss_lab.training.experiment import TrainingConfig

# Number of learning rates of the linear schedule. A CUDA graph contains the rate, so each change needs a new capture.
STAGES = 20


class Schedule(ScheduleState):
    """The schedule of a training, which validation scores change."""

    def update(self, score: float, step: int, config: TrainingConfig) -> bool:
        """Add a validation score, where lower is better, and return whether it is the best so far."""
        score = math.inf if math.isnan(score) else score
        if self.best is None or score < self.best:
            self.best, self.best_step, self.waiting, self.lowered = score, step, 0, 0
            return True
        self.waiting += 1
        if config.schedule == "plateau" and self.waiting > config.patience:
            self.factor = max(self.factor * config.lr_factor, sys.float_info.min)
            self.waiting, self.lowered = 0, self.lowered + 1
        return False


def linear_factor(done: float, total: float) -> float:
    """Return the factor of the learning rates after a part of all steps or seconds. It falls from 1 in equal stages.

    >>> [linear_factor(step, 100) for step in (0, 4, 5, 50, 99)]
    [1.0, 1.0, 0.95, 0.5, 0.05]
    """
    return max(1, STAGES - STAGES * done // total) / STAGES
